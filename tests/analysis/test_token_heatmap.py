"""Shades of tokens without the last one, and labels of tokens."""

import re

import numpy as np
import pytest

from diffeq_former.analysis import plotting, token_heatmap

ROWS = {"a": "first", "b": "second"}
SENTENCE = {
    "tokens": ["x", "y", "<z>", "last"],
    "predicted": "word",
    "a": [2.0, 5.0, 3.5, 40.0],
    "b": [0.0, 0.0, 0.0, -7.25],
}


def page(tmp_path, sentence):
    token_heatmap.write_page(tmp_path / "page.html", "title", [sentence], ROWS)
    return (tmp_path / "page.html").read_text()


def test_the_last_token_is_apart_from_the_shades(tmp_path):
    text = page(tmp_path, SENTENCE)
    assert re.findall(r"rgb\((\d+),", text) == ["255", "0", "128"] + ["255"] * 3
    assert re.findall(r"border[^>]*>([^<]*)</span> ([^<]*)", text) == [
        ("last", "40"),
        ("last", "-7.25"),
    ]
    other = page(tmp_path, SENTENCE | {"a": [2.0, 5.0, 3.5, -1.0]})
    assert other == text.replace("</span> 40<", "</span> -1<")


def test_the_plot_shades_the_other_tokens(tmp_path):
    plotting.require_matplotlib()
    with plotting.saved_figure(tmp_path / "plot.png") as axes:
        token_heatmap._plot(axes, SENTENCE, ROWS)
        [image] = axes.images
        np.testing.assert_allclose(image.get_array(), [[0, 1, 0.5], [0, 0, 0]])
        assert [t.get_text() for t in axes.texts] == ["40", "-7.2"]
        assert [p.get_x() for p in axes.patches] == [2.5, 2.5]  # the outlines
        assert axes.get_xlim() == (-0.5, 3.5)
        labels = [t.get_text() for t in axes.get_xticklabels()]
        assert labels == SENTENCE["tokens"]


@pytest.mark.parametrize(
    "most, expected", [(None, range(7)), (7, range(7)), (4, [0, 2, 4, 6]), (1, [0])]
)
def test_no_more_labels_than_fit(tmp_path, most, expected):
    plotting.require_matplotlib()
    with plotting.saved_figure(tmp_path / "plot.png") as axes:
        token_heatmap.label_tokens(axes.xaxis, list("abcdefg"), most)
        assert axes.get_xticks().tolist() == list(expected)
        labels = [t.get_text() for t in axes.get_xticklabels()]
        assert labels == ["abcdefg"[place] for place in expected]


def test_labels_are_short_and_escaped():
    assert token_heatmap.label(" a\n") == r" a\n"
    assert token_heatmap.label("$x$") == r"\$x\$"
    assert token_heatmap.label("é") == r"\xe9"
    assert token_heatmap.label("abcdefghijkl") == "abcdefghijkl"
    assert token_heatmap.label("abcdefghijklm") == "abcdefghij.."
