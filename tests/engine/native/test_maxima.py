"""The highest number of each row, as NumPy finds it."""

import math

import numpy as np
import pytest
import torch

from orcastream.engine.native.maxima import has_maxima, row_maxima

INFINITY = math.inf


def reference(matrix: torch.Tensor, rows: list[int]) -> tuple[list[float], list[int]]:
    some = matrix[rows].float().numpy()
    best = some.argmax(axis=1)
    return some[np.arange(len(rows)), best].tolist(), best.tolist()


def check(matrix: torch.Tensor, rows: list[int], instruction_set: str) -> None:
    values, places = row_maxima(matrix, rows, instruction_set)
    expected_values, expected_places = reference(matrix, rows)
    assert places == expected_places
    assert values == pytest.approx(expected_values, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 31, 64, 65, 1023, 1024, 5000, 151_937])
def test_random_rows(instruction_set: str, dtype: torch.dtype, width: int) -> None:
    """With many ties in bfloat16, of which the first counts; rows in any order, and repeated."""
    matrix = torch.randn(7, width + 3, generator=torch.Generator().manual_seed(width)).to(dtype)[:, :width]
    for rows in ([3], [0, 1, 2, 3, 4, 5, 6], [6, 0, 6]):
        check(matrix, rows, instruction_set)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_place_is_found(instruction_set: str, dtype: torch.dtype, threads: int) -> None:
    """Once the highest, once twice, once a NaN, which counts as the highest wherever it is."""
    width = 262_144 + 77  # enough for three threads
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for place in (0, 1, 15, 16, 33, 1023, 1024, 2047, 70_000, width // 2, width - 78, width - 1):
            for value in (2.0, math.nan, INFINITY):
                matrix = torch.full((1, width), -1.0, dtype=dtype)
                matrix[0, place] = value
                check(matrix, [0], instruction_set)
                matrix[0, width - 1 - place // 2] = value
                check(matrix, [0], instruction_set)
                matrix[0, place // 3] = math.nan
                check(matrix, [0], instruction_set)
    finally:
        torch.set_num_threads(before)


def test_rows_without_a_finite_number(instruction_set: str) -> None:
    matrix = torch.full((3, 3000), -INFINITY)
    matrix[1, 2999] = -3e38
    matrix[2] = math.nan
    check(matrix, [0, 1, 2], instruction_set)
    check(torch.tensor([[-0.0, 0.0, -0.0]]), [0], instruction_set)


def test_what_cannot_be_read_is_refused(instruction_set: str) -> None:
    assert not has_maxima(torch.zeros(2, 8, dtype=torch.float16))
    assert not has_maxima(torch.zeros(8, 2).T)
    with pytest.raises(ValueError, match=r"got torch.float16 \(2, 8\), allowed: float32 or bfloat16"):
        row_maxima(torch.zeros(2, 8, dtype=torch.float16), [0], instruction_set)
    with pytest.raises(ValueError, match=r"\(2, 0\), allowed"):
        row_maxima(torch.zeros(2, 0), [0], instruction_set)
    for row in (-1, 2):
        with pytest.raises(IndexError, match=rf"got \[0, {row}\], allowed: 0 to 1"):
            row_maxima(torch.zeros(2, 8), [0, row], instruction_set)
    assert row_maxima(torch.zeros(2, 8), [], instruction_set) == ([], [])
