"""The random numbers of `engine/sampling/random.py`, computed in a kernel."""

import triton
import triton.language as tl


@triton.jit
def draw_key(seed, position):
    """Return the key of a draw, uint64 in the shape of `seed` and `position`, which are uint64, too."""
    return next_key(next_key(seed) + position)


@triton.jit
def next_key(state):
    """Return SplitMix64's output for the state after `state`, uint64."""
    mixed = state + 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def exponential_noise(key, entries):
    """Return the Exponential(1) variates of int32 `entries` `[n]` as float32; `key` is uint64 `[1]`."""
    hashed = _finalise(entries.to(tl.uint32) + 1, 0) ^ key.to(tl.uint32)
    bits = _finalise(hashed, (key >> 32).to(tl.uint32)) & 0x7FFFFFFF
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 4.656612873077393e-10, 0.99999994)
    # In double precision 1 - u is exact, which log1p would spare; few entries are computed.
    return (-tl.log(1.0 - uniform.to(tl.float64))).to(tl.float32)


@triton.jit
def _finalise(bits, key):
    """Apply MurmurHash3's fmix32 to uint32 `bits`; `key` is mixed in after the first multiplication."""
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B ^ key
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits ^ (bits >> 16)
