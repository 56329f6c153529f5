"""Draws tokens on the device: one program per draw, nothing as wide as the vocabulary in memory but the logits.

The same draws as in `engine/sampling/race.py`: an exponential race among tiles of the vocabulary, then one in the
winning tile, repeated while top_p drops the winner. Weights are computed from the logits each time they are needed,
because a row of them stays in the L2 cache. In the order of a row, higher logits come first, and lower ids on a tie;
`(value, last)` are its tokens up to the one with that logit and id.
"""

import torch
import triton
import triton.language as tl

from orcastream.engine.sampling.triton.noise import draw_key, exponential_noise, next_key

STEP = 8
"""Tiles that a program reads at once: enough bytes in flight for one multiprocessor."""

WARPS = 16
"""Of one program."""


def draw(
    logits: torch.Tensor, places: torch.Tensor, shares: torch.Tensor, *, eager: bool, attempts: int, tile: int
) -> torch.Tensor:
    """Return the highest score of each draw's row and the drawn token, float64 `[2, draws]`, without waiting.

    logits `[rows, vocab]` of any floating type; int64 `places` `[draws, 4]`: row, seed, position, top_k (0: all);
    float64 `shares` `[draws, 3]`: 1 / temperature (0: take the first of the highest), the least weight that min_p keeps
    (the highest is 1), the share of the weight before which top_p keeps tokens (infinite: all). With `eager` what
    top_p drops does not enter the first race, otherwise only a race after `attempts`. A score that is not finite comes
    with no meaningful token, and is NaN if any score of the row is.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    found = torch.empty(2, len(places), dtype=torch.float64, device=logits.device)
    draw_kernel[(len(places),)](
        logits,
        places,
        shares,
        found,
        logits.stride(0),
        logits.shape[1],
        len(places),
        EAGER=eager,
        ATTEMPTS=attempts,
        TILE=tile,
        STEP=STEP,
        num_warps=WARPS,
    )
    return found


@triton.jit(do_not_specialize=["num_draws"], do_not_specialize_on_alignment=["places", "shares"])
def draw_kernel(
    logits,
    places,
    shares,
    found,
    row_stride,
    vocab,
    num_draws,
    EAGER: tl.constexpr,
    ATTEMPTS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Make one draw."""
    number = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(places + number * 4) * row_stride
    top_k = tl.load(places + number * 4 + 3).to(tl.int32)
    factor = tl.load(shares + number * 3).to(tl.float32)
    floor = tl.load(shares + number * 3 + 1).to(tl.float32)
    share = tl.load(shares + number * 3 + 2).to(tl.float32)
    best, token, columns = _highest(row, vocab, TILE * STEP)
    tl.store(found + number, best.to(tl.float64))
    if (factor > 0) & (tl.abs(best) < float("inf")):
        value, last = tl.full((), -float("inf"), tl.float32), vocab - 1
        if (top_k > 0) & (top_k < vocab):
            wanted = top_k.to(tl.float32)
            reached = _reached(columns, best, wanted)
            value, last = _first_of(row, vocab, reached, last, best, factor, floor, wanted, True, TILE * STEP)
        target = float("inf")
        attempt = 0
        if share < 1:
            target = share * _mass(row, vocab, value, last, best, factor, 0.0, False, TILE * STEP)
            attempt = ATTEMPTS if EAGER else 0
        one = tl.arange(0, 1)
        seed = tl.load(places + number * 4 + 1 + one).to(tl.uint64, bitcast=True)
        key = draw_key(seed, tl.load(places + number * 4 + 2 + one).to(tl.uint64, bitcast=True))
        again = True
        while again:
            if (attempt == ATTEMPTS) & (share < 1):
                value, last = _first_of(row, vocab, value, last, best, factor, floor, target, False, TILE * STEP)
            token = _race(row, vocab, value, last, best, factor, floor, key, TILE, STEP)
            again = False
            if (attempt < ATTEMPTS) & (share < 1):
                own = tl.load(row + token).to(tl.float32)
                again = _mass(row, vocab, own, token - 1, best, factor, floor, False, TILE * STEP) >= target
            attempt += 1
            key = next_key(key)
    tl.store(found + num_draws + number, token.to(tl.float64))


@triton.jit
def _highest(row, vocab, WIDTH: tl.constexpr):
    """Return the highest score, NaN if any is, the first token that has it, and the highest score of each column."""
    columns = tl.arange(0, WIDTH)
    highest = tl.full((WIDTH,), -float("inf"), tl.float32)
    first = columns
    for start in range(0, vocab, WIDTH):
        scores = tl.load(row + start + columns, mask=start + columns < vocab, other=-float("inf")).to(tl.float32)
        higher = (scores > highest) | (scores != scores)
        highest = tl.where(higher, scores, highest)
        first = tl.where(higher, start + columns, first)
    is_nan = highest != highest
    best = tl.max(tl.where(is_nan, float("inf"), highest), axis=0)
    token = tl.min(tl.where(highest == best, first, vocab - 1), axis=0)
    return tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), best), token, highest


@triton.jit
def _reached(columns, best, wanted):
    """Return the highest score that at least `wanted` of `columns` reach, of which `best` is the highest; or -inf."""
    low, high = _ordered(tl.full((), -float("inf"), tl.float32)), _ordered(best) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        if tl.sum((columns >= _score(middle)).to(tl.float32), axis=0) >= wanted:
            low = middle
        else:
            high = middle
    return _score(low)


@triton.jit
def _is_before(scores, ids, vocab, value, last):
    """Whether tokens are up to `(value, last)`."""
    return ((scores > value) | ((scores == value) & (ids <= last))) & (ids < vocab)


@triton.jit
def _weights(row, ids, vocab, value, last, best, factor, floor):
    """Return the weights of tokens `ids` among those up to `(value, last)`; those below `floor` are 0."""
    scores = tl.load(row + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    weights = tl.exp(tl.maximum((scores - best) * factor, -80.0))
    return tl.where(_is_before(scores, ids, vocab, value, last) & (weights >= floor), weights, 0.0)


@triton.jit
def _mass(row, vocab, value, last, best, factor, floor, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the weight, or with COUNT the number, of the tokens up to `(value, last)`."""
    columns = tl.arange(0, WIDTH)
    masses = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, vocab, WIDTH):
        if COUNT:
            scores = tl.load(row + start + columns, mask=start + columns < vocab, other=-float("inf")).to(tl.float32)
            masses += _is_before(scores, start + columns, vocab, value, last).to(tl.float32)
        else:
            masses += _weights(row, start + columns, vocab, value, last, best, factor, floor)
    return tl.sum(masses, axis=0)


@triton.jit
def _first_of(row, vocab, value, last, best, factor, floor, wanted, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the fewest first tokens of those up to `(value, last)`, as such a pair, with the mass `wanted`, or all.

    With COUNT the mass is their number. Bisects over logits, as integers of the same order, then over the ids of the
    tokens with the last logit.
    """
    low, high = _ordered(value), _ordered(best) + 1
    mass = _mass(row, vocab, value, last, best, factor, floor, COUNT, WIDTH)
    while (high - low > 1) & (mass != wanted):
        middle = low + (high - low) // 2
        found = _mass(row, vocab, _score(middle), vocab - 1, best, factor, floor, COUNT, WIDTH)
        if found >= wanted:
            low, mass = middle, found
        else:
            high = middle
    bound = _score(low)
    begin, end = tl.full((), -1, tl.int32), tl.where(bound == value, last, vocab - 1)
    while (end - begin > 1) & (mass != wanted):
        id = begin + (end - begin) // 2
        found = _mass(row, vocab, bound, id, best, factor, floor, COUNT, WIDTH)
        if found >= wanted:
            end, mass = id, found
        else:
            begin = id
    return bound, end


@triton.jit
def _ordered(score):
    """Return a float32 as an int64 of the same order."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _score(ordered):
    """Return the float32 of an integer from `_ordered`."""
    bits = ordered.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _race(row, vocab, value, last, best, factor, floor, key, TILE: tl.constexpr, STEP: tl.constexpr):
    """Return the winner among the tokens up to `(value, last)`."""
    tiles, columns = tl.arange(0, STEP), tl.arange(0, TILE)
    leads = tl.full((STEP,), -1.0, tl.float32)
    leaders = tiles
    for start in range(0, tl.cdiv(vocab, TILE), STEP):
        ids = (start + tiles)[:, None] * TILE + columns[None, :]
        sums = tl.sum(_weights(row, ids, vocab, value, last, best, factor, floor), axis=1)
        speeds = sums / exponential_noise(key, TILE + start + tiles)
        leaders = tl.where(speeds > leads, start + tiles, leaders)
        leads = tl.maximum(speeds, leads)
    tile = tl.min(tl.where(leads == tl.max(leads, axis=0), leaders, vocab), axis=0)
    entrants = _weights(row, tile * TILE + columns, vocab, value, last, best, factor, floor)
    return tile * TILE + tl.argmax(entrants / exponential_noise(key, columns), axis=0)
