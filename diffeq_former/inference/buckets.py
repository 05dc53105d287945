"""Sizes that programs are compiled for: powers of two, so that they are few."""

SHORTEST = 16  # tokens of a prompt that are read at once; at most CHUNK
CHUNK = 256  # longer prompts are read in several calls
SHORTEST_CACHE = 256  # slots


def num_rows(rows: int, shares: int) -> int:
    """A multiple of the shares in which devices hold the rows."""
    return _doubled(shares, rows)


def chunk(longest: int) -> int:
    """How many tokens of each prompt a call reads."""
    return min(_doubled(SHORTEST, longest), CHUNK)


def cache(needed: int, max_len: int) -> int:
    """How many slots the cache has."""
    return min(_doubled(SHORTEST_CACHE, needed), max_len)


def _doubled(smallest: int, needed: int) -> int:
    size = smallest
    while size < needed:
        size *= 2
    return size
