"""Random numbers that depend only on (seed, position)."""

import torch

_MASK32 = 0xFFFFFFFF
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)


def draw_keys(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return one 64-bit key per (seed, position), `[rows]` int64, by SplitMix64 (Steele, Lea & Flood, OOPSLA'14)."""
    return _split_mix(_split_mix(seeds) + positions)


def next_keys(keys: torch.Tensor) -> torch.Tensor:
    """Return keys of a second, independent stream of noise for the same draws."""
    return _split_mix(keys)


def exponential_noise(keys: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """Return independent Exponential(1) variates, float32 in the shape of `entries` `[rows, n]`; keys `[rows]` int64.

    Counter-based: the number of an entry is a hash of (key, entry), so it is the same in any batch, next to any other
    entries and after any interruption. Both halves of a key are mixed in, before and after the first multiplication of
    MurmurHash3's 32-bit finalizer over a hashed entry.
    """
    first = _to_int32(keys & _MASK32).unsqueeze(1)
    second = _to_int32((keys >> 32) & _MASK32).unsqueeze(1)
    hashed = _finalise(entries.to(torch.int32) + 1) ^ first
    bits = _finalise(hashed, second).bitwise_and_(0x7FFFFFFF)
    # -log(1 - u) with u = (bits + 1/2) / 2^31 keeps full precision where it matters: at small values.
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _split_mix(state: torch.Tensor) -> torch.Tensor:
    """Return SplitMix64's output for the state after `state`, int64 with wrap-around."""
    mixed = state + _GOLDEN_GAMMA
    mixed = (mixed ^ _shift(mixed, 30, 64)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    mixed = (mixed ^ _shift(mixed, 27, 64)) * (0x94D049BB133111EB - (1 << 64))
    return mixed ^ _shift(mixed, 31, 64)


def _finalise(bits: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
    """Apply MurmurHash3's fmix32 in place, int32 with wrap-around; `key` is mixed in after the first multiplication."""
    bits ^= _shift(bits, 16, 32)
    bits *= 0x85EBCA6B - (1 << 32)
    if key is not None:
        bits ^= key
    bits ^= _shift(bits, 13, 32)
    bits *= 0xC2B2AE35 - (1 << 32)
    bits ^= _shift(bits, 16, 32)
    return bits


def _shift(bits: torch.Tensor, by: int, width: int) -> torch.Tensor:
    """Shift signed integers right logically."""
    return (bits >> by).bitwise_and_((1 << (width - by)) - 1)


def _to_int32(bits: torch.Tensor) -> torch.Tensor:
    """Return the 32-bit patterns in int64 `bits` as int32."""
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
