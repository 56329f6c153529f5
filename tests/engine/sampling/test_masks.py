"""Masks: excluded tokens never occur, allowed tokens occur as if they were all; rows without a mask are unaffected."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from orcastream.engine.request import Request
from orcastream.engine.sampling.masks import MaskThread, allowed, mask_bytes
from orcastream.engine.sampling.sampler import SamplingRow, sample
from orcastream.schemas.sampling import SamplingParams

WIDTHS = [30, 96, 20_000]


def masks_of(allowed_ids: Sequence[Sequence[int]], vocab: int, device: torch.device) -> torch.Tensor:
    bits = np.zeros((len(allowed_ids), mask_bytes(vocab) * 8), dtype=np.uint8)
    for row, ids in enumerate(allowed_ids):
        bits[row, list(ids)] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little")).to(device)


def row(position: int, mask: int | None, **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), 7, position, mask=mask)


@pytest.mark.parametrize("vocab", WIDTHS)
def test_bits_are_tokens(vocab: int, device: torch.device) -> None:
    ids = [0, 7, 8, 15, 29, vocab - 1]
    (found,) = allowed(masks_of([ids], vocab, device), vocab)
    assert found.nonzero().flatten().tolist() == sorted(set(ids))


@pytest.mark.parametrize("vocab", WIDTHS)
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_only_allowed_tokens_are_drawn_as_if_there_were_no_others(
    vocab: int, params: dict[str, Any], device: torch.device
) -> None:
    """A masked row draws the same tokens as a row whose other logits are -inf."""
    torch.manual_seed(0)
    logits = torch.randn(4, vocab, device=device) * 3
    ids = [[3, 4, 5], [28], list(range(0, vocab, 3)), [1, vocab - 1]]
    rows = [row(position, position, **params) for position in range(4)]
    found = [each.token for each in sample(logits, rows, masks=masks_of(ids, vocab, device))]
    only = torch.full_like(logits, -torch.inf)
    for index, some in enumerate(ids):
        only[index, some] = logits[index, some]
    assert found == [each.token for each in sample(only, [row(position, None, **params) for position in range(4)])]
    assert all(token in some for token, some in zip(found, ids, strict=True))


@pytest.mark.parametrize("vocab", WIDTHS)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_neighbors_draw_as_they_would_alone(vocab: int, temperature: float, device: torch.device) -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, vocab, device=device)
    plain = [row(position, None, temperature=temperature) for position in range(5)]
    alone = [each.token for each in sample(logits, plain)]
    mixed = [row(position, {1: 0, 3: 1}.get(position), temperature=temperature) for position in range(5)]
    found = [each.token for each in sample(logits, mixed, masks=masks_of([[2], [9, 11]], vocab, device))]
    assert [found[index] for index in (0, 2, 4)] == [alone[index] for index in (0, 2, 4)]
    assert found[1] == 2
    assert found[3] in (9, 11)


def test_choices_of_one_row_have_separate_masks(device: torch.device) -> None:
    logits = torch.randn(1, 30, device=device)
    rows = [row(0, mask, temperature=0) for mask in (0, 1, None)]
    found = sample(logits, rows, of=[0, 0, 0], masks=masks_of([[4], [6]], 30, device))
    assert [each.token for each in found] == [4, 6, int(logits.argmax())]


def test_an_empty_mask_yields_no_token(device: torch.device) -> None:
    logits = torch.randn(1, 30, device=device)
    for temperature in (0, 1.0):
        (found,) = sample(logits, [row(0, 0, temperature=temperature)], masks=masks_of([[]], 30, device))
        assert found.token is None


def test_logprobs_ignore_the_mask(device: torch.device) -> None:
    logits = torch.randn(1, 30, device=device)
    (found,) = sample(logits, [row(0, 0, temperature=0, logprobs=2)], masks=masks_of([[5]], 30, device))
    own, first = found.logprobs
    expected = logits[0].log_softmax(-1)
    assert found.token == 5
    assert own == pytest.approx(float(expected[5]), abs=1e-5)
    assert [token for token, _ in first] == expected.topk(2).indices.tolist()


class Counting:
    """Allows the token whose id is the number of tokens so far; breaks at `end`."""

    def __init__(self, end: int = 99) -> None:
        self.seen: list[int] = []
        self.end = end

    def consume(self, token_ids: Sequence[int]) -> None:
        self.seen += token_ids

    def fill(self, mask: Any) -> None:
        if len(self.seen) == self.end:
            raise ValueError("it ends")
        mask[:] = 0
        mask[len(self.seen) // 8] = 1 << len(self.seen) % 8


def test_tokens_reach_a_matcher_once_and_earlier_outputs_before_the_first_mask() -> None:
    thread = MaskThread(30)
    matcher = Counting()
    request = Request("a", (1, 2), output_ids=(5, 6), matcher=matcher)
    for expected in ([5, 6], [5, 6, 7], [5, 6, 7]):
        if len(expected) > len(request.output_ids):
            request.output_ids = [*request.output_ids, 7]
        pending = thread.begin([request])
        assert pending is not None
        masks = pending.result()
        assert matcher.seen == expected
        assert allowed(torch.from_numpy(masks.bits), 30)[masks.rows[request]].nonzero().flatten().tolist() == [
            len(expected)
        ]


def test_followers_have_masks_and_a_failing_matcher_ends_only_its_row() -> None:
    leader, follower, broken = (
        Request(name, (1,), matcher=Counting(end)) for name, end in (("a", 9), ("b", 9), ("c", 0))
    )
    leader.followers.append(follower)
    pending = MaskThread(30).begin([Request("plain", (1,)), leader, broken])
    assert pending is not None
    masks = pending.result()
    assert set(masks.rows) == {leader, follower}
    assert masks.failed == {broken: "the constraint failed on this request: it ends"}


def test_without_constraints_no_mask_is_computed() -> None:
    assert MaskThread(30).begin([Request("a", (1,)), Request("b", (2,))]) is None
