"""Random numbers that depend on (seed, position) alone."""

import torch

_MASK32 = 0xFFFFFFFF
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_TILE = 8192
"""Vocabulary entries hashed at a time: the working set stays in the cache of a core."""


def exponential_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Independent Exponential(1) variates, `[rows, vocab_size]` float32, one row per (seed, position).

    Counter-based: entry v of a row is a hash of (seed, position, v), so it is the same in any batch and after any
    interruption. seeds and positions `[rows]` int64. Two 32-bit keys per row come from SplitMix64 (Steele, Lea & Flood,
    OOPSLA'14) and enter before and after the first multiplication of MurmurHash3's 32-bit finaliser over a hashed v.

    An exponential race, argmax(p / noise), draws from p. Unlike the inversion of a cumulative sum it changes its
    choice only if the leader is overtaken, so that rounding of the logits rarely shows even in a large vocabulary.
    """
    keys = _split_mix(_split_mix(seeds) + positions)
    first = _to_int32(keys & _MASK32).unsqueeze(1)
    second = _to_int32((keys >> 32) & _MASK32).unsqueeze(1)
    noise = torch.empty(len(seeds), vocab_size, dtype=torch.float32, device=seeds.device)
    for start in range(0, vocab_size, _TILE):
        stop = min(start + _TILE, vocab_size)
        tile = _finalise(torch.arange(start, stop, dtype=torch.int32, device=seeds.device) + 1) ^ first
        bits = _finalise(tile, second).bitwise_and_(0x7FFFFFFF)
        # -log(1 - u) with u = (bits + 1/2) / 2^31 keeps full precision where it decides: at small values.
        uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
        noise[:, start:stop] = uniform.neg_().log1p_().neg_()
    return noise


def _split_mix(state: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output for the state after `state`, int64 with wrap-around."""
    mixed = state + _GOLDEN_GAMMA
    mixed = (mixed ^ _shift(mixed, 30, 64)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    mixed = (mixed ^ _shift(mixed, 27, 64)) * (0x94D049BB133111EB - (1 << 64))
    return mixed ^ _shift(mixed, 31, 64)


def _finalise(bits: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
    """MurmurHash3's fmix32 in place, int32 with wrap-around; `key` is mixed in after the first multiplication."""
    bits ^= _shift(bits, 16, 32)
    bits *= 0x85EBCA6B - (1 << 32)
    if key is not None:
        bits ^= key
    bits ^= _shift(bits, 13, 32)
    bits *= 0xC2B2AE35 - (1 << 32)
    bits ^= _shift(bits, 16, 32)
    return bits


def _shift(bits: torch.Tensor, by: int, width: int) -> torch.Tensor:
    """Logical shift to the right of signed integers."""
    return (bits >> by).bitwise_and_((1 << (width - by)) - 1)


def _to_int32(bits: torch.Tensor) -> torch.Tensor:
    """The 32-bit patterns in int64 `bits` as int32."""
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
