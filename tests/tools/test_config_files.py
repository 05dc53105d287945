"""What can be wrong in the file of --config."""

import json
import sys

import pytest

PREAMBLE = "from diffeq_former.config import default_config\n"
RETURN = "return diffeq_former.config.default_config(), with some fields changed"


@pytest.fixture(autouse=True)
def _no_other_file(monkeypatch):
    """As in a process of its own: ml_collections loads each file under this name."""
    monkeypatch.delitem(sys.modules, "config_config", raising=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:", ", line 1: SyntaxError: invalid syntax"),
        ("raise RuntimeError('a\\nb')", ", line 1: RuntimeError: a b"),
        (
            "\nimport no_such_module",
            ", line 2: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import sys\nsys.exit(3)", ", line 2: SystemExit: 3"),
        (
            "def get_config():\n  return get_config()",
            ", line 2: RecursionError: maximum recursion depth exceeded",
        ),
        (
            "def get_config():\n  raise KeyError('d_model')",
            ", line 2: KeyError: 'd_model'",
        ),
        ("x = 1", ": the file defines no get_config()"),
        ("def get_config():\n  return {}", f": get_config() returned dict; {RETURN}"),
        ("def get_config():\n  pass", f": get_config() returned None; {RETURN}"),
        (
            f"{PREAMBLE}def get_config():\n  c = default_config()\n  c.sed = 1",
            ", line 4: no such key 'sed'; the nearest is config.seed",
        ),
    ],
)
def test_one_line_names_the_file_and_the_line(refused, tmp_path, text, message):
    path = tmp_path / "config.py"
    path.write_text(text)
    line = refused("plan.py", "--target=gpu:h100:1x1", f"--config={path}")
    assert line == f"--config={path}{message}"


VARIANTS = f"""{PREAMBLE}
from diffeq_former.config.variants import BASELINE, apply_variant


def get_config(variant="ours"):
    config = default_config()
    config.model.num_layers = 2
    config.model.d_model = 64
    config.model.num_heads = 4
    config.model.vocab_size = 256
    return apply_variant(config, variant, {{"ours": {{}}, "baseline": BASELINE}})
"""


def test_a_variant_is_planned(tool, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(VARIANTS)
    numbers = {}
    for argument in ("", ":ours", ":baseline"):
        flags = ("--nocompile", "--target=gpu:h100:1x1", f"--config={path}{argument}")
        line = json.loads(tool("plan.py", *flags).stdout)
        numbers[argument] = line["memory"]["parameters"]
    assert numbers[""] == numbers[":ours"] > numbers[":baseline"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VARIANTS, ": no variant 'other'; expected one of ours, baseline"),
        (
            f"{PREAMBLE}def get_config():\n  return default_config()",
            ": the file has no variants; leave out what follows the colon",
        ),
    ],
)
def test_a_variant_that_is_not_there(refused, tmp_path, text, message):
    path = tmp_path / "config.py"
    path.write_text(text)
    line = refused("plan.py", "--target=gpu:h100:1x1", f"--config={path}:other")
    assert line == f"--config={path}{message}"


def test_what_is_no_text(refused, tmp_path):
    path = tmp_path / "config.py"
    path.write_bytes(b"\xff\xfe\n")
    line = refused("plan.py", "--target=gpu:h100:1x1", f"--config={path}")
    assert line.startswith(f"--config={path}, line 1: SyntaxError: ")


def test_a_folder(refused, tmp_path):
    line = refused("plan.py", "--target=gpu:h100:1x1", f"--config={tmp_path}")
    assert line.endswith(f"Is a directory: '{tmp_path}'") and "--config: " in line
