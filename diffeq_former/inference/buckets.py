"""Bucketed array sizes, so that only a few programs have to be compiled."""

SHORTEST = 16  # smallest prefill chunk, in tokens; at most CHUNK
CHUNK = 256  # largest prefill chunk; longer prompts take several calls
SHORTEST_CACHE = 256  # smallest cache, in positions
SHORTEST_VIEW = 128  # fewest positions of the cache that a call reads


def batch_size(num_sequences: int, shards: int) -> int:
    """Return the batch size: the number of shards times a power of two."""
    return _grown(shards, num_sequences, 2)


def chunk(longest: int) -> int:
    """Return how many tokens of each prompt one prefill call reads."""
    return min(_grown(SHORTEST, longest, 4), CHUNK)


def cache(needed: int, max_len: int) -> int:
    """Return the number of positions of the cache, at most `max_len`."""
    return min(_grown(SHORTEST_CACHE, needed, 2), max_len)


def view(needed: int, length: int) -> int:
    """Return how many positions a call reads of a cache with `length` positions."""
    return min(_grown(SHORTEST_VIEW, needed, 8), length)


def _grown(smallest: int, needed: int, factor: int) -> int:
    size = smallest
    while size < needed:
        size *= factor
    return size
