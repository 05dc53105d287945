"""Bucketed array sizes, so that only a few programs have to be compiled."""

SHORTEST = 16  # smallest prefill chunk, in tokens; at most CHUNK
CHUNK = 256  # largest prefill chunk; longer prompts take several calls
SHORTEST_CACHE = 256  # smallest cache, in slots
FEWEST_SORTED = 64  # tokens


def batch_size(num_sequences: int, shards: int) -> int:
    """Return the batch size: the number of shards times a power of two."""
    return _doubled(shards, num_sequences)


def chunk(longest: int) -> int:
    """Return how many tokens of each prompt one prefill call reads."""
    return min(_doubled(SHORTEST, longest), CHUNK)


def cache(needed: int, max_len: int) -> int:
    """Return the number of slots of the cache, at most `max_len`."""
    return min(_doubled(SHORTEST_CACHE, needed), max_len)


def num_sorted(top_k: int) -> int:
    """Return how many of the most likely tokens top-k sampling sorts."""
    return _doubled(FEWEST_SORTED, top_k)


def _doubled(smallest: int, needed: int) -> int:
    size = smallest
    while size < needed:
        size *= 2
    return size
