"""What a page shows to a reader with a phone, in a browser."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

WIDTH = 390  # of a phone, in CSS pixels
_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium")

# A window is at least 500 wide, a frame is not. What is not in the page is refused,
# and a refusal is on the console.
_PHONE = """<!DOCTYPE html>
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<iframe width="{width}" height="844" srcdoc="{page}"></iframe>
<script>addEventListener("load", () => {{
  const page = frames[0].document;
  const sizes = [...page.body.querySelectorAll("*")].map(
    x => parseFloat(getComputedStyle(x).fontSize));
  document.title = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    smallest_font: Math.min(...sizes),
    pictures: [...page.images].map(x => x.complete && x.naturalWidth > 0),
    loaded: frames[0].performance.getEntriesByType("resource").map(x => x.name),
    text: page.body.innerText,
  }});
}})</script>
"""


class Seen(NamedTuple):
    width: int
    smallest_font: float
    pictures: list[bool]  # whether it shows
    loaded: list[str]  # from elsewhere
    text: str
    console: list[str]


def on_a_phone(page: Path, folder: Path) -> Seen:
    """Opens a page; `folder` is for what the browser writes."""
    frame = folder / "frame.html"
    content = html.escape(page.read_text(encoding="utf-8"))
    frame.write_text(_PHONE.format(width=WIDTH, page=content), encoding="utf-8")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    flags += (f"--user-data-dir={folder / 'profile'}", "--dump-dom")
    result = subprocess.run(
        [BROWSER, *flags, f"file://{frame}"], capture_output=True, encoding="utf-8"
    )
    [title] = re.findall("<title>(.*?)</title>", result.stdout, re.DOTALL)
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return Seen(**json.loads(html.unescape(title)), console=console)


def assert_readable(seen: Seen, num_pictures: int) -> None:
    assert seen.pictures == [True] * num_pictures
    assert (seen.loaded, seen.console) == ([], [])
    assert seen.width <= WIDTH and seen.smallest_font >= 12
