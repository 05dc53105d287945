"""Pages of HTML; that the browser's tests see what is wrong with one."""

import re

import pytest
from browser import WIDTH, assert_readable, needs_browser, on_a_phone

from diffeq_former.analysis import pages, plotting


def rows(table):
    cells = [re.findall("<t[hd]>(.*?)</t[hd]>", line) for line in table.splitlines()]
    return [line for line in cells if line]


def test_a_table_has_the_columns_that_have_values():
    table = pages.table([{"x": 1234, "y": None}, {"x": 0.123456, "z": "a<b"}])
    assert rows(table) == [["x", "z"], ["1,234", ""], ["0.1235", "a&lt;b"]]


def test_a_single_row_stands_upright():
    assert rows(pages.table([{"x": 1, "y": None, "z": "b"}])) == [
        ["x", "1"],
        ["z", "b"],
    ]


@pytest.fixture
def drawn(tmp_path):
    plotting.require_matplotlib()
    with plotting.saved_figure(tmp_path / "line.png", (12, 3)) as axes:
        axes.plot([0, 1])
    return pages.picture(tmp_path / "line.png")


@needs_browser
def test_a_browser_shows_a_page(drawn, tmp_path):
    wide = pages.table([{f"column {i}": "word" for i in range(20)}] * 2)
    body = drawn + wide + pages.verbatim("long" * 200) + pages.folded("more", "less")
    (tmp_path / "page.html").write_text(pages.page("a < b", body))
    seen = on_a_phone(tmp_path / "page.html", tmp_path)
    assert_readable(seen, num_pictures=1)
    assert seen.text.startswith("a < b") and "column 19" in seen.text


@needs_browser
@pytest.mark.parametrize(
    "fault",
    [
        f'<p style="width:{WIDTH}px">wide</p>',
        '<p style="font-size:9px">small</p>',
        '<img src="data:image/png;base64,AAAA">',
        '<img src="missing.png">',
        '<script src="http://localhost:1/missing.js"></script>',
        '<link rel="stylesheet" href="http://localhost:1/missing.css">',
        "<script>undefined_name</script>",
    ],
)
def test_a_browser_sees(fault, drawn, tmp_path):
    (tmp_path / "page.html").write_text(pages.page("title", drawn + fault))
    seen = on_a_phone(tmp_path / "page.html", tmp_path)
    with pytest.raises(AssertionError):
        assert_readable(seen, num_pictures=1 + fault.count("<img"))
