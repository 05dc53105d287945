import re
import sys

import pytest

from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError


def test_a_picture_is_written_whole_or_not_at_all(tmp_path):
    output = plotting.new_plot(str(tmp_path / "a.png"))
    with pytest.raises(ZeroDivisionError), plotting.saved_figure(output) as axes:
        axes.plot([1, 2], plotting.STYLES[0])
        _ = 1 / 0
    assert not any(tmp_path.iterdir())
    with plotting.saved_figure(output) as axes:
        axes.plot([1, 2], plotting.STYLES[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name, problem",
    [
        ("a", "expected a name that ends with .png"),
        ("a.pdf", "expected a name that ends with .png"),
        ("old.png", "exists: remove it or name another"),
    ],
)
def test_only_new_png_files_are_taken(tmp_path, name, problem):
    (tmp_path / "old.png").write_text("mine")
    with pytest.raises(UserError, match=rf"output .*{name}:? {re.escape(problem)}$"):
        plotting.new_plot(str(tmp_path / name))


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        UserError, match=r"matplotlib is missing: pip install .* -e '\.\[plot\]'"
    ):
        plotting.new_plot(str(tmp_path / "a.png"))


@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_ticks_of_heads_and_steps_are_integers(tmp_path, count):
    plotting.require_matplotlib()
    with plotting.saved_figure(tmp_path / "a.png") as axes:
        axes.set(xlim=(-0.5, count - 0.5), ylim=(0.5, count + 0.5))
        plotting.integer_ticks(axes.xaxis, axes.yaxis)
        for ticks, low in ((axes.get_xticks(), 0), (axes.get_yticks(), 1)):
            shown = [tick for tick in ticks if low <= tick < low + count]
            assert shown and all(tick == round(tick) for tick in ticks)
