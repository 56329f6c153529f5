"""Beam search equals that of transformers' generate, whatever else is in the batch and whatever is preempted."""

import random
from itertools import count
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from orcastream.engine import Beam, OrcaEngine, Request, TokenEvent
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.beam_search import BeamSearch
from orcastream.engine.model.quiet import quiet
from orcastream.engine.request import INTERNAL
from orcastream.engine.schedule.policies.fair import FairShares
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason
from tests.engine.conftest import VOCAB_SIZE
from tests.engine.running import MakeEngine, MakeModel, break_row, crowd, run, tokens

EOS = 7
PROMPTS = (tuple(range(3, 20)), (5,), tuple(range(40, 73)))


def reference(model: PreTrainedModel, prompt: tuple[int, ...], beam: Beam, num_tokens: int) -> list[list[int]]:
    with quiet():
        model.set_attn_implementation("eager")
    return generated(model, prompt, beam, [EOS], num_tokens)


def generated(
    model: Any, prompt: tuple[int, ...], beam: Beam, stops: list[int], num_tokens: int, **options: Any
) -> list[list[int]]:
    """Return what transformers generates after the prompt, up to the first of `stops`."""
    ids = torch.tensor([prompt], device=model.device)
    with quiet(), torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            num_beams=beam.width,
            num_return_sequences=beam.num_return,
            length_penalty=beam.length_penalty,
            early_stopping=beam.early_stopping,
            eos_token_id=stops,
            pad_token_id=0,
            **options,
        )
    rows = [row[len(prompt) :].tolist() for row in output]
    return [row[: next((i + 1 for i, token in enumerate(row) if token in stops), num_tokens)] for row in rows]


class Table(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # transformers has no types
    """Random logits for the successor of a token at a position: `[position, vocab, vocab]`, `stops` likely."""

    config_class = PreTrainedConfig

    def __init__(self, seed: int, vocab_size: int, positions: int, stops: list[int]) -> None:
        super().__init__(PreTrainedConfig(vocab_size=vocab_size, is_decoder=True))
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn((positions, vocab_size, vocab_size), generator=generator) * 2
        logits[:, :, stops] += 1.5
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.logits[input_ids.shape[1] - 1, input_ids[:, -1:]])

    def candidates(self, outputs: tuple[int, ...], how_many: int) -> list[tuple[int, float]]:
        """Return the likeliest tokens after the prompt 0 and these tokens."""
        last = (0, *outputs)[-1]
        best = self.logits[len(outputs), last].log_softmax(dim=-1).topk(min(how_many, len(self.logits[0])))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def searched(self, beam: Beam, stops: list[int], num_tokens: int) -> list[list[int]]:
        """Return the beams by the engine's rules."""
        search = BeamSearch(beam, stops, num_tokens)
        running: list[tuple[int, ...]] = [()]
        while running:
            found = [self.candidates(outputs, beam.num_of_each(stops)) for outputs in running]
            running = [(*running[branch.parent], branch.token) for branch in search.step(running, found)]
        return [list(hypothesis.output_ids) for hypothesis in search.best()]


@torch.inference_mode()
def test_rules_equal_those_of_transformers_on_random_data() -> None:
    """Especially when several hypotheses end in one step, of which the best-scoring ones stay."""
    drawn = random.Random(3)
    for seed in range(150):
        stops = drawn.sample(range(1, 12), drawn.choice([1, 2, 4]))
        width = drawn.choice([2, 3, 5, 7])
        beam = Beam(width, drawn.randint(1, width), drawn.choice([-1.0, 0.0, 0.5, 1.0, 2.0]), drawn.random() < 0.7)
        num_tokens = drawn.choice([1, 2, 5, 9])
        table = Table(seed, 12, num_tokens, stops)
        expected = generated(table, (0,), beam, stops, num_tokens, use_cache=False)
        assert table.searched(beam, stops, num_tokens) == expected, (seed, beam, stops, num_tokens)


def search(name: str, prompt: tuple[int, ...], beam: Beam, num_tokens: int = 12, **params: Any) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, stop_token_ids=(EOS,), **params)
    return Request(name, prompt, sampling, beam=beam)


def choices(events: list[TokenEvent]) -> list[list[int | None]]:
    assert not any(event.error for event in events)
    found: dict[int, list[int | None]] = {}
    for event in events:
        outputs = found.setdefault(event.choice, [])
        assert event.position == len(outputs)
        outputs.append(event.token)
    ends = [event for event in events if event.finish_reason is not None]
    assert [event.choice for event in ends] == sorted(found)
    assert all((event.finish_reason is FinishReason.STOP) == (event.token == EOS) for event in ends)
    return [found[choice] for choice in sorted(found)]


BEAMS = [
    Beam(1),
    Beam(2, 2),
    Beam(4, 3),
    Beam(4, 4, length_penalty=2.0),
    Beam(3, 2, length_penalty=0.2, early_stopping=True),
    Beam(5, 1, length_penalty=-1.0),
]


@pytest.mark.parametrize("beam", BEAMS, ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_beams_equal_those_of_transformers(
    family: str, beam: Beam, make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model(family)
    with torch.no_grad():  # ends are likely enough to occur
        model.get_output_embeddings().weight[EOS] *= 1.5
    expected = [reference(model, prompt, beam, 12) for prompt in PROMPTS]
    engine = make_engine(model, num_blocks=256)
    found = run(engine, *(search(str(index), prompt, beam) for index, prompt in enumerate(PROMPTS)))
    assert [choices(events) for events in found.values()] == expected


@pytest.mark.parametrize("settings", [{"num_blocks": 50}, {"num_blocks": 50, "prefix_cache": False}, {"overlap": "on"}])
def test_beams_among_others_and_preempted(
    settings: dict[str, Any], make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model()
    beam = Beam(4, 2)
    expected = [reference(model, prompt, beam, 12) for prompt in PROMPTS]
    others = run(make_engine(num_blocks=256), *crowd())
    engine = make_engine(model, **{"num_blocks": 256, "max_batch_size": 16, **settings})
    requests = [search(f"beam-{index}", prompt, beam) for index, prompt in enumerate(PROMPTS)]
    found = run(engine, *requests, *crowd())
    assert [choices(found[request.id]) for request in requests] == expected
    assert {name: tokens(found[name]) for name in others} == {name: tokens(each) for name, each in others.items()}
    assert (engine.stats().preemptions > 0) == ("num_blocks" in settings)


def test_the_prompt_is_computed_once_and_shared(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, prefix_cache=False)
    run(engine, search("a", tuple(range(30)), Beam(8, 8)))
    assert engine.stats().prompt_tokens == 30


def test_no_end_before_min_tokens(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_output_embeddings().weight[EOS] *= 4
    found = choices(run(make_engine(model), search("a", (1, 2, 3), Beam(3, 3), min_tokens=6))["a"])
    assert all(len(outputs) >= 6 for outputs in found)


def test_a_cancelled_search_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(search("a", tuple(range(10)), Beam(4)))
    for _ in range(4):
        engine.step()
    assert engine.num_running == 4
    assert engine.cancel("a")
    engine.check_integrity()
    assert not engine.has_work
    assert engine.stats().blocks_used == 0


@pytest.mark.parametrize(
    ("beam", "params", "field"),
    [
        (Beam(40), {}, "beam_width"),
        (Beam(30), {"max_tokens": 90}, "beam_width"),
        (Beam(2), {"temperature": 0.5}, "temperature"),
        (Beam(2), {"top_k": 5}, "top_k"),
        (Beam(2), {"logprobs": 1}, "logprobs"),
    ],
)
def test_unsupported_beam_searches(beam: Beam, params: dict[str, Any], field: str, make_engine: MakeEngine) -> None:
    engine: OrcaEngine = make_engine()
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 8, **params})
    refused = Request("a", (1, 2), sampling, beam=beam)
    refused.max_tokens = None
    with pytest.raises(InvalidRequest, match=field):
        engine.submit(refused)
    assert not engine.has_work
    assert refused.max_tokens is None


def test_no_more_hypotheses_than_tokens_that_do_not_end_an_output(
    make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model()
    model.generation_config.eos_token_id = list(range(2, VOCAB_SIZE))
    engine = make_engine(model)
    with pytest.raises(InvalidRequest, match="beam_width: got 3, allowed: at most 2, the tokens that do not end"):
        engine.submit(search("a", (1, 2), Beam(3)))
    events = run(engine, search("a", (1, 2), Beam(2, 2)))["a"]
    assert [event.choice for event in events if event.finish_reason is not None] == [0, 1]


def test_hypotheses_never_take_the_name_of_another_request(make_engine: MakeEngine) -> None:
    names = ["X#beam1", f"X{INTERNAL}", "X.1"]
    engine = make_engine()
    expected = choices(run(make_engine(), search("X", (3, 1, 4), Beam(3, 3)))["X"])
    engine.submit(crowding := search("X", (3, 1, 4), Beam(3, 3)))
    engine.step()
    inner = [each.id for each in crowding.hypotheses[1:]]
    for name in (names[1], *inner):
        with pytest.raises(InvalidRequest, match="id: got"):
            engine.submit(search(name, (5,), Beam(1)))
    assert engine.cancel("X")
    found = run(engine, *(search(name, (3, 1, 4), Beam(3, 3)) for name in ("X", names[0], names[2])))
    assert all(choices(events) == expected for events in found.values())


@pytest.mark.parametrize("policy", ["fcfs", "fair", "static"])
@pytest.mark.parametrize("admission", ["paged", "reserve"])
def test_searches_that_do_not_fit_together_still_end(policy: str, admission: str, make_engine: MakeEngine) -> None:
    """A search's running hypotheses must not wait forever for others of it that lack the blocks they hold."""
    searches = [(f"s{number}", tuple(range(number, number + 9)), Beam(2)) for number in range(3)]
    expected = [choices(run(make_engine(num_blocks=256), search(*each, 20))[each[0]]) for each in searches]
    engine = make_engine(num_blocks=16, prefix_cache=False, policy=policy, admission=admission)
    for each in searches:
        engine.submit(search(*each, 20))
    events: dict[str, list[TokenEvent]] = {name: [] for name, _, _ in searches}
    for _ in range(500):
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
    assert [choices(events[name]) for name, _, _ in searches] == expected


@pytest.mark.parametrize("failing", [(0,), (2,), (0, 1, 2)])
def test_hypotheses_that_fail_end_their_search_once(
    failing: tuple[int, ...], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    other = search("other", (9, 8, 7), Beam(1))
    engine.submit(search("a", (3, 1, 4), Beam(3)))
    engine.step()
    forward, calls = engine._runner.forward, count(-1)  # first all together, then one by one

    def fail(batch: FlatBatch, *_: object) -> torch.Tensor:
        if next(calls) in (-1, *failing):
            raise RuntimeError("no")
        return forward(batch)

    monkeypatch.setattr(engine._runner, "forward", fail)
    (event,) = engine.step()
    assert (event.request_id, event.token) == ("a", None)
    engine.check_integrity()
    assert choices(run(engine, other)["other"])


def test_hypotheses_have_the_targets_and_the_age_of_their_search(make_engine: MakeEngine) -> None:
    engine = make_engine(policy="slo")
    root = search("a", (3, 1, 4), Beam(3))
    root.ttft_slo_ms, root.tbt_slo_ms, root.deadline_s, root.waited_s = 500.0, 50.0, 1e9, 30.0
    engine.submit(root)
    engine.step()
    assert len(root.hypotheses) == 3
    for each in root.hypotheses[1:]:
        assert (each.ttft_slo_ms, each.tbt_slo_ms, each.deadline_s) == (500.0, 50.0, 1e9)
        assert (each.waited_s, each.timeline.submitted_s) == (30.0, root.timeline.submitted_s)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority", "slo"])
def test_later_requests_do_not_delay_a_search(policy: str, make_engine: MakeEngine) -> None:
    """Its hypotheses share its place in the order: they are not preempted for requests that arrived before they did."""

    def steps_of_search(others: int) -> int:
        engine = make_engine(num_blocks=26, max_batch_size=8, prefix_cache=False, policy=policy)
        engine.submit(search("a", (3, 1, 4), Beam(3), 20))
        for each in crowd(others):
            engine.submit(each)
        for step in count(1):
            events = engine.step()
            engine.check_integrity()
            if any(event.request_id == "a" for event in events):
                return step
        raise AssertionError

    assert steps_of_search(others=12) == steps_of_search(others=0)


def test_a_fair_share_pays_for_the_prompt_of_a_search_once(make_engine: MakeEngine) -> None:
    engine = make_engine(policy="fair")
    asked = search("a", tuple(range(10, 30)), Beam(3), 5)
    asked.sampling = asked.sampling.model_copy(update={"ignore_eos": True})
    run(engine, asked)
    # Each of the first four steps yields a token of each hypothesis; the fifth ends the search.
    policy = engine._scheduler.policy
    assert isinstance(policy, FairShares)
    assert policy._tenants[asked.tenant].served == 20 + 2 * 4 * 3


@pytest.mark.parametrize("penalty", [1e5, -11.0, float("nan")])
def test_a_length_penalty_that_leaves_no_finite_score_is_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match="length_penalty"):
        Beam(2, length_penalty=penalty)


@pytest.mark.parametrize(
    ("sizes", "field"), [((0,), "beam_width"), ((2.5,), "beam_width"), ((2, 3), "num_return"), ((2, 1.5), "num_return")]
)
def test_a_width_that_is_no_number_of_hypotheses_is_refused(sizes: tuple[Any, ...], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: got {sizes[-1]}"):
        Beam(*sizes)


@pytest.mark.parametrize("seed", range(30))
def test_the_likeliest_few_of_each_hypothesis_decide(seed: int) -> None:
    """The result equals that of ranking all candidates of all hypotheses together, including ties."""
    choose = random.Random(seed)
    stops = frozenset(choose.sample(range(40), choose.choice([0, 1, 6])))
    beam = Beam(choose.randint(1, 4), length_penalty=choose.choice([0.0, 1.0, -1.0]), early_stopping=seed % 2 == 0)
    searches = [BeamSearch(beam, stops, 8) for _ in range(2)]
    outputs: list[list[int]] = [[]]
    while outputs:
        rows = [[(token, -choose.randint(1, 60) / 8) for token in range(40)] for _ in outputs]
        ranked = [sorted(row, key=lambda pair: -pair[1]) for row in rows]
        counts = (beam.num_candidates(stops), beam.num_of_each(stops))
        both = zip(searches, counts, strict=True)
        branches, others = (search.step(outputs, [row[:count] for row in ranked]) for search, count in both)
        assert branches == others
        outputs = [[*outputs[branch.parent], branch.token] for branch in branches]
    assert searches[0].best() == searches[1].best()


def test_few_continuations_of_a_search_with_many_stop_tokens_are_ranked(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    step = BeamSearch.step

    def note(self: BeamSearch, outputs: Any, candidates: Any) -> Any:
        counts.append(max(map(len, candidates)))
        return step(self, outputs, candidates)

    monkeypatch.setattr(BeamSearch, "step", note)
    asked = search("a", (3, 1, 4), Beam(3))
    asked.sampling = asked.sampling.model_copy(update={"stop_token_ids": tuple(range(40, 60))})
    run(make_engine(), asked)
    assert max(counts) <= 3 + 20 + 1


@pytest.mark.parametrize("broken", [0, 1])
def test_a_search_with_a_hypothesis_without_a_score_fails_and_leaves_no_blocks(
    broken: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with any other request, what was computed is not reused; the answer does not continue without a hypothesis."""

    def searching(name: str) -> Request:
        return Request(name, tuple(range(1, 30)), SamplingParams(temperature=0, max_tokens=6), beam=Beam(2, 2))

    expected = run(make_engine(), searching("a"))["a"]
    engine = make_engine()
    break_row(engine, monkeypatch, row=broken, call=3)
    (failed,) = run(engine, searching("a"))["a"]
    assert "no finite score" in (failed.error or "")
    assert engine.stats().blocks_reusable == 0
    assert tokens(run(engine, searching("a"))["a"]) == tokens(expected)
