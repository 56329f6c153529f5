"""The page docs/iteration.md: one iteration of a walk, explained with its numbers."""

import math
import textwrap
from collections.abc import Iterable, Sequence

from orcastream.bench.figures.machine import machine
from orcastream.bench.walk.walk import BLOCK_SIZE, MAX_BATCH_SIZE, MAX_TOKENS, SCENE, Iteration, Span, Walk

TIMES = "<!-- times -->"
"""The text after this heading differs between runs."""
_MORE = 4


def page(walk: Walk, static: Walk) -> str:
    """Return the page in Markdown; `static` is the same scene under request-level batching."""
    shown = chosen(walk.iterations)
    sections = [
        *_head(walk),
        *_course(walk.iterations, static.iterations, shown),
        *_plan(shown),
        *_stream(walk, shown),
        *_blocks(shown),
        *_layers(walk, shown),
        *_attention(shown),
        *_sampling(walk, shown),
        *_times(shown),
    ]
    return "\n\n".join(sections) + "\n"


def chosen(iterations: Sequence[Iteration]) -> Iteration:
    """Return the first iteration with a decode and a chunk that follows an earlier one."""
    return next(
        each
        for each in iterations
        if any(span.decodes for span in each.spans)
        and any(not span.decodes and span.context > span.length for span in each.spans)
    )


def _text(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 118, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _token(walk: Walk, token: int) -> str:
    """Return a token's text as code in a table."""
    piece = walk.tokenizer.decode([token], skip_special_tokens=False)
    return "`" + piece.replace("\n", "\\n").replace("|", "\\|") + "`"


def _head(walk: Walk) -> list[str]:
    rows = []
    for asked in SCENE:
        length, answer = len(walk.prompts[asked.name]), walk.answers[asked.name]
        rows.append((asked.name, " … ".join(asked.turns[::2]), length, asked.arrives, answer))
    return [
        "# One iteration",
        _text(
            "This page shows what the engine does between two forward passes, with real numbers: five requests and",
            f"the demo model, in a batch of at most {MAX_BATCH_SIZE} requests and {MAX_TOKENS} tokens per iteration",
            f"(a server's has 32 and 256), with blocks of {BLOCK_SIZE} tokens. `python -m orcastream.bench.walk` runs",
            "the engine and writes this page; `tests/bench/test_walk.py` runs it again and compares.",
            "[concepts.md](concepts.md) defines the words, and [engine.md](engine.md) gives the reasons.",
        ),
        _table(("request", "question", "prompt, tokens", "arrives before iteration", "answer"), rows),
    ]


def _course(iterations: Sequence[Iteration], static: Sequence[Iteration], shown: Iteration) -> list[str]:
    def cell(iteration: Iteration, name: str) -> str:
        for span in iteration.spans:
            if span.name == name:
                return "1" if span.decodes else f"**{span.length}**"
        return "waits" if name in iteration.waiting else ""

    names = [asked.name for asked in SCENE]
    some = iterations[: shown.number + _MORE]
    rows = [(each.number, *(cell(each, name) for name in names), len(each.ids)) for each in some]
    return [
        "## The whole run",
        "![Two schedulers, the same requests. Above, a place is refilled as soon as it is free; below, places stay "
        "empty until the longest answer is done.](batching.svg)",
        _text(
            "Filled cell: a chunk of a prompt, with its number of tokens. Pale cell: one token of an answer.",
            f"All requests finish after {len(iterations)} iterations instead of {len(static)}. The table has the",
            f"beginning of the upper half as numbers. The rest of this page examines iteration {shown.number}.",
        ),
        _table(("iteration", *names, "tokens"), rows),
    ]


def _plan(shown: Iteration) -> list[str]:
    rows = []
    for span in shown.spans:
        positions = f"{span.context - span.length} … {span.context - 1}" if span.length > 1 else span.context - 1
        rows.append((span.name, "decode" if span.decodes else "prefill", span.length, positions))
    decodes = sum(span.decodes for span in shown.spans)
    chunks = ", ".join(f"{span.name}: {span.length}" for span in shown.spans if not span.decodes)
    waits = f"{', '.join(shown.waiting)} waits because no place is free." if shown.waiting else ""
    return [
        "## 1. select()",
        _text(
            f"Decoding requests come first, with one token each: {decodes} of the {MAX_TOKENS} tokens. The rest of",
            f"the budget, {MAX_TOKENS - decodes} tokens, goes to prompts in order of arrival. A chunk that does not",
            f"complete its prompt ends at a block boundary ({chunks}). {waits}",
        ),
        _table(("request", "phase", "tokens", "positions"), rows),
    ]


def _stream(walk: Walk, shown: Iteration) -> list[str]:
    rows = [
        (row, span.name, _token(walk, shown.ids[row]), shown.ids[row], shown.positions[row], shown.slots[row])
        for span in shown.spans
        for row in range(span.first, span.first + span.length)
    ]
    longest = max(span.length for span in shown.spans)
    offsets = [*(span.first for span in shown.spans), len(shown.ids)]
    return [
        "## 2. The flat batch",
        _text(
            "The spans lie end to end, one-token spans first, in descending order of context. There is no padding:",
            f"{len(shown.ids)} rows, where a rectangle of {len(shown.spans)} requests by {longest} tokens would have",
            f"{longest * len(shown.spans)}. The spans begin and end at {offsets}.",
        ),
        _table(("row", "request", "token", "id", "position", "slot"), rows),
    ]


def _blocks(shown: Iteration) -> list[str]:
    rows = []
    for span in shown.spans:
        free = len(span.table) * BLOCK_SIZE - span.context
        rows.append((span.name, span.context, " ".join(map(str, span.table)), free))
    first = shown.spans[0]
    number, within = divmod(first.context - 1, BLOCK_SIZE)
    block = first.table[number]
    return [
        "## 3. Where keys and values go",
        _text(
            "A block table lists a request's blocks in order. The key and the value of position p go to block",
            f"`table[p // {BLOCK_SIZE}]`, at `p % {BLOCK_SIZE}`: {first.name}'s token at position {first.context - 1}",
            f"has slot {block} × {BLOCK_SIZE} + {within} = {block * BLOCK_SIZE + within}. A request never wastes more",
            "than the free slots of its last block.",
        ),
        _table(("request", "context, tokens", "block table", "slots free"), rows),
    ]


def _layers(walk: Walk, shown: Iteration) -> list[str]:
    config = walk.engine.model.config.get_text_config()
    rows, heads, keys = len(shown.ids), config.num_attention_heads, config.num_key_value_heads
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    wanted = sum(span.token is not None for span in shown.spans)
    per_row = config.num_hidden_layers * hidden * ((2 * heads + 2 * keys) * size + 3 * inner)
    steps = [
        ("embedding", f"`[1, {rows}, {hidden}]`"),
        ("norm, projection to queries", f"`[{heads}, {rows}, {size}]`"),
        ("projection to keys, and to values", f"`[{keys}, {rows}, {size}]`"),
        ("attention (below)", f"`[{rows}, {heads}, {size}]`"),
        ("projection back", f"`[1, {rows}, {hidden}]`"),
        ("norm, gated MLP", f"`[1, {rows}, {inner}]`, then `[1, {rows}, {hidden}]`"),
        ("after the last layer: logits of the rows that need them", f"`[{wanted}, {config.vocab_size}]`"),
    ]
    return [
        "## 4. Everything but attention: once, over all rows",
        _text(
            f"Each of the {config.num_hidden_layers} layers sees `[1, {rows}, {hidden}]` and does not know which",
            "request a row belongs to.",
        ),
        _table(("step", "output shape"), steps),
        _text(
            f"That is {per_row:,} multiplications per row in the layers, {rows * per_row:,} in this iteration. The",
            "weights are read once for all rows: this is what batching saves.",
        ),
    ]


def _attention(shown: Iteration) -> list[str]:
    rows = [(span.name, span.length, span.context, len(span.table), span.pairs) for span in shown.spans]
    alike = len(shown.ids) * sum(span.context for span in shown.spans)
    return [
        "## 5. Attention: request by request",
        "Each span's queries see the keys of their own request, up to their own position, through its block table.",
        _table(("request", "queries", "keys", "blocks read", "pairs of a query and a key, per head"), rows),
        _text(
            f"That is {sum(span.pairs for span in shown.spans):,} pairs in total. A single attention of all rows over",
            f"all keys, with a mask that separates the requests, would compute {alike:,}.",
        ),
    ]


def _sampling(walk: Walk, shown: Iteration) -> list[str]:
    def likeliest(span: Span) -> tuple[object, ...]:
        assert span.token is not None
        assert span.token.token is not None
        assert span.token.logprobs is not None
        odds = ", ".join(f"{_token(walk, token)} {_odds(logprob)}" for token, logprob in span.token.logprobs[1])
        row = span.first + span.length - 1
        return span.name, row, odds, _token(walk, span.token.token), span.token.finish_reason or "continues"

    done = [span for span in shown.spans if span.token is not None]
    without = [span.name for span in shown.spans if span.token is None]
    left = [span.name for span in done if span.token is not None and span.token.finish_reason]
    after = (
        f"{', '.join(left)} has ended: its blocks are free, and the next `select()` gives its place to another request."
        if left
        else "No request has ended, so the next `select()` finds the same requests and no free place."
    )
    return [
        "## 6. Sampling, and which requests leave",
        _text(
            "Logits are computed for the last row of each span that gets a token.",
            f"{', '.join(without)} gets none: its prompt is not complete." if without else "",
        ),
        _table(("request", "row", "most likely tokens and their odds", "chosen", ""), map(likeliest, done)),
        _text(
            f"{after} The tokens go to the publisher, which writes them to the reply logs while the next iteration",
            "runs ([architecture.md](architecture.md#the-worker)).",
        ),
    ]


def _odds(logprob: float) -> str:
    """Return the odds `1 : n`, to one digit."""
    return f"1 : {float(f'{math.exp(-logprob):.1g}'):,.0f}"


def _times(shown: Iteration) -> list[str]:
    record = shown.record
    steps = {
        "select": record.select_s,
        "lay out": record.build_s,
        "forward": record.forward_s,
        "sample": record.sample_s,
        "total, with bookkeeping": record.total_s,
    }
    return [
        "## Where the time went",
        TIMES,
        _text(
            f"These are the times of this run, on one thread of {machine()['cpu_model']}, in plain PyTorch and with",
            "every iteration recorded. [benchmarks.md](benchmarks.md) has the times of the compiled operators.",
        ),
        _table(("step", "ms"), [(name, f"{1000 * seconds:.2f}") for name, seconds in steps.items()]),
    ]
