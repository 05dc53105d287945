"""tools/plot.py trend on what comparisons print."""

import json

import command_lines
import pytest

TOOL = ("plot.py", "trend")


def row(model, flops, loss, difference, spread=0.1):
    low, high = difference and (difference - spread, difference + spread) or (None,) * 2
    return {
        "model": model,
        "training_flops": flops,
        "held_out_loss": loss,
        "held_out_loss_std": 0.01,
        "difference": difference,
        "difference_low": low,
        "difference_high": high,
    }


# By size; the losses are lines over log10(FLOPs), of slopes -0.5 and -0.6.
SIZES = {
    "large": [row("hyper", 1e15, 4.2, -0.3), row("plain", 1e15, 4.5, None)],
    "small": [row("hyper", 1e13, 5.4, -0.1), row("plain", 1e13, 5.5, None)],
}


def write(folder, rows) -> str:
    folder.mkdir()
    text = "".join(json.dumps(one) + "\n" for one in rows)
    (folder / "figures.jsonl").write_text(text)
    return f"--comparison={folder}"


@pytest.fixture
def flags(tmp_path):
    return [write(tmp_path / name, rows) for name, rows in SIZES.items()]


def test_lines_over_compute(flags, tmp_path):
    result = command_lines.run(*TOOL, *flags, f"--output={tmp_path / 'trend.png'}")
    assert result.returncode == 0, result.stderr
    hyper, plain = map(json.loads, result.stdout.splitlines())
    assert hyper["training_flops"] == plain["training_flops"] == [1e13, 1e15]
    assert hyper["held_out_loss"] == [5.4, 4.2]
    assert hyper["difference_low"] == [pytest.approx(-0.2), pytest.approx(-0.4)]
    assert hyper["slope"] == pytest.approx(-0.6)
    assert hyper["difference_slope"] == pytest.approx(-0.1)
    assert plain["slope"] == pytest.approx(-0.5) and "difference_slope" not in plain
    assert (tmp_path / "trend.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "expected the output of tools/experiment.py comparison"),
        ([{"model": "hyper"}], "expected the output of tools/experiment.py comparison"),
        ([row("hyper", 1e14, None, None)], "(a model has no loss)"),
        ([row("other", 1e14, 4.0, 0.1)], "it compares other, and"),
    ],
)
def test_refuses(flags, tmp_path, rows, message):
    other = f"--comparison={tmp_path / 'other'}"
    if rows is not None:
        write(tmp_path / "other", rows)
    output = tmp_path / "trend.png"
    result = command_lines.run(*TOOL, *flags, other, f"--output={output}")
    assert result.returncode == 2 and not output.exists()
    assert result.stderr.startswith(f"error: {other}: ") and message in result.stderr
    assert result.stderr.count("\n") == 1


def test_refuses_one_size(flags, tmp_path):
    output = tmp_path / "trend.png"
    result = command_lines.run(*TOOL, flags[0], f"--output={output}")
    assert (result.returncode, output.exists()) == (2, False)
    assert "--comparison: expected two folders or more" in result.stderr
