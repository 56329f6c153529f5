"""Seeds that every worker derives alike, so that a continuation draws the same random numbers."""

from hashlib import blake2b


def derived_seed(request_id: str) -> int:
    """Return the seed of a request that sets none: 63 bits of a hash of its id."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little") >> 1


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of `n` choices; choice 0 keeps the request's own."""
    if choice == 0:
        return seed
    mixed = blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little") >> 1
