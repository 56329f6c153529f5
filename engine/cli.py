"""Run the engine alone on the command line: prompts in, tokens streamed out. No Redis, no HTTP."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, get_args

from pydantic import ValidationError

from orcastream.engine.config import Admission, DeviceName, DTypeName, EngineConfig
from orcastream.engine.engine import OrcaEngine
from orcastream.engine.model.load import load_model_config
from orcastream.engine.request import Request
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.sampling import SamplingParams

_EPILOG = """\
All prompts run in one batch, scheduled per iteration. The text of the first unfinished prompt is streamed as it is
generated; the text of the others is printed when their turn comes.

  python -m orcastream.engine --model demo/model --prompt "What is 3 + 4?" --prompt "Spell cat." --max-tokens 32
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if a request failed, or 2 with one line on stderr if the input is invalid."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        print(f"error: {first['loc'][0]}: got {first['input']!r}: {first['msg']}", file=sys.stderr)
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:  # InvalidRequest and UnsupportedModel among them
        print(f"error: {error}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m orcastream.engine",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="directory or hub id of a transformers model")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="repeat for a batch")
    parser.add_argument(
        "--prompt-ids", action="append", default=[], metavar="IDS", help="token ids, e.g. 1,15,8; repeat for a batch"
    )
    parser.add_argument("--chat", action="store_true", help="put each --prompt into the model's chat template")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--device", choices=get_args(DeviceName), default="auto")
    engine.add_argument("--dtype", choices=get_args(DTypeName), default="auto")
    engine.add_argument("--policy", choices=sorted(POLICIES), default=EngineConfig.policy)
    engine.add_argument("--admission", choices=get_args(Admission), default="paged")
    engine.add_argument("--max-batch-size", type=int, default=EngineConfig.max_batch_size)
    engine.add_argument("--max-num-batched-tokens", type=int, default=EngineConfig.max_num_batched_tokens)
    engine.add_argument("--no-self-check", dest="self_check", action="store_false")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=64)
    sampling.add_argument("--min-tokens", type=int, default=0)
    sampling.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    sampling.add_argument("--top-k", type=int, default=0)
    sampling.add_argument("--top-p", type=float, default=1.0)
    sampling.add_argument("--min-p", type=float, default=0.0)
    sampling.add_argument("--seed", type=int)
    sampling.add_argument("--stop-token-id", type=int, action="append", default=[])
    sampling.add_argument("--ignore-eos", action="store_true")
    return parser


def _run(args: argparse.Namespace) -> int:
    sampling = _sampling(args)
    config = EngineConfig(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        policy=args.policy,
        admission=args.admission,
        max_batch_size=args.max_batch_size,
        max_num_batched_tokens=args.max_num_batched_tokens,
        self_check=args.self_check,
    )
    load_model_config(config)  # reports a missing model before its tokenizer is missed
    tokenizer = _tokenizer(args.model)
    prompts = [_encode(tokenizer, text, args.chat) for text in args.prompt]
    prompts += [_ids(text) for text in args.prompt_ids]
    if not prompts:
        raise ValueError("no prompt: give --prompt or --prompt-ids")
    engine = OrcaEngine.load(config)
    requests = [Request(f"prompt-{index}", tuple(prompt), sampling) for index, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    return _stream(engine, requests, tokenizer)


def _sampling(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        stop_token_ids=tuple(args.stop_token_id),
        ignore_eos=args.ignore_eos,
    )


def _tokenizer(model: str) -> Any | None:
    """Return the model's tokenizer, or None if it has none; token ids are printed then."""
    from transformers import AutoTokenizer

    from orcastream.engine.model.quiet import quiet

    with quiet():
        try:
            return AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        except (OSError, ValueError, KeyError):
            return None


def _ids(text: str) -> list[int]:
    try:
        return [int(token) for token in text.split(",")]
    except ValueError:
        raise ValueError(f"--prompt-ids: got {text!r}, allowed: token ids separated by commas") from None


def _encode(tokenizer: Any | None, text: str, chat: bool) -> list[int]:
    if tokenizer is None:
        raise ValueError("the model has no tokenizer: give --prompt-ids")
    if chat:
        messages = [{"role": "user", "content": text}]
        ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids
    encoded: list[int] = tokenizer(text)["input_ids"]
    return encoded


def _stream(engine: OrcaEngine, requests: Sequence[Request], tokenizer: Any | None) -> int:
    """Print each output as it grows, one request after another; return 1 if any failed, else 0."""
    printer = _Printer(requests, tokenizer)
    failed = 0
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                failed = 1
                print(f"error: {event.request_id}: {event.error}", file=sys.stderr)
        printer.show()
    printer.show()
    return failed


class _Printer:
    """Writes the outputs in the order of the requests, each as far as it is generated."""

    def __init__(self, requests: Sequence[Request], tokenizer: Any | None) -> None:
        self._left = list(requests)
        self._tokenizer = tokenizer
        self._shown = ""

    def show(self) -> None:
        """Write the text that is new since the last call."""
        while self._left:
            request = self._left[0]
            over = request.timeline.finished_s is not None
            text = self._text(request, over)
            if not self._shown and text:
                sys.stdout.write(f"[{request.id}] ")
            sys.stdout.write(text[len(self._shown) :])
            sys.stdout.flush()
            self._shown = text
            if not over:
                return
            sys.stdout.write(f"  ({request.finish_reason or 'error'}, {request.num_outputs} tokens)\n")
            self._left.pop(0)
            self._shown = ""

    def _text(self, request: Request, over: bool) -> str:
        if self._tokenizer is None:
            return " ".join(map(str, request.output_ids))
        text: str = self._tokenizer.decode(request.output_ids, skip_special_tokens=True)
        # An incomplete character decodes to a replacement mark until its last byte arrives.
        return text if over else text.rstrip("\ufffd")
