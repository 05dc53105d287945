import json

import command_lines
import pytest

TOOL = ("plot.py", "depth")


def draw(*files, output):
    flags = [f"--metrics={file}" for file in files]
    return command_lines.run(*TOOL, *flags, f"--output={output}")


@pytest.fixture
def figures(tmp_path):
    """Two files of what tools/evaluate.py prints."""
    for name, perplexities in {"a": {8: 50.0, 4: 60.0}, "b": {6: 55.0}}.items():
        lines = [
            {
                "split": "validation",
                "num_steps": n,
                "loss": 4.0,
                "perplexity": perplexity,
                "flops_per_token": 1e6 * n,
            }
            for n, perplexity in perplexities.items()
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path / "a.jsonl", tmp_path / "b.jsonl"


def test_writes_the_picture_and_its_numbers(figures, tmp_path):
    result = draw(*figures, output=tmp_path / "depth.png")
    assert result.returncode == 0, result.stderr
    points = [json.loads(line) for line in result.stdout.splitlines()]
    assert [p["num_steps"] for p in points] == [4, 8, 6]
    assert [p["excess"] for p in points] == [pytest.approx(0.2), 0, 0]
    assert [p["metrics"] for p in points] == [str(figures[i]) for i in (0, 0, 1)]
    assert points[0]["flops_per_token"] == 4e6
    assert (tmp_path / "depth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", [None, "", "8 50.0\n", '{"num_steps": 8}\n', "3\n"])
def test_a_file_without_figures_is_refused(figures, tmp_path, content):
    other = tmp_path / "other.jsonl"
    if content is not None:
        other.write_text(content)
    result = draw(figures[0], other, output=tmp_path / "depth.png")
    assert result.returncode == 2 and not (tmp_path / "depth.png").exists()
    words = f"error: --metrics={other}: expected a file with the lines of tools/eval"
    assert result.stderr.startswith(words) and result.stderr.count("\n") == 1


def test_nothing_is_overwritten(figures, tmp_path):
    (tmp_path / "depth.png").write_text("mine")
    result = draw(*figures, output=tmp_path / "depth.png")
    assert result.returncode == 2 and "exists: remove it" in result.stderr
    assert (tmp_path / "depth.png").read_text() == "mine"
