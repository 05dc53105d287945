"""The cache of compiled programs, in processes of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
from diffeq_former import compilation_cache
compilation_cache.enable()
print(jax.jit(lambda x: x + 1)(1))
"""


def run(folder) -> None:
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "2\n", "")


@pytest.mark.parametrize("content", [b"", b"x" * 1000], ids=["empty", "other"])
def test_a_damaged_entry_is_replaced_without_a_word(tmp_path, content):
    run(tmp_path)
    [entry] = tmp_path.glob("jit__lambda*-cache")
    whole = entry.stat().st_size
    entry.write_bytes(content)
    run(tmp_path)
    assert abs(entry.stat().st_size - whole) < whole / 10
