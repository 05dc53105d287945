"""tools/report.py as a user runs it, and its page in a browser where there is one."""

import json
import re
import shutil
import subprocess

import pytest

TOOL = "report.py"
SECTIONS = ["Settings", "Training", "Samples", "Depth"]
SECTIONS += ["Spectra of the weights", "Sensitivity", "Costs"]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# What a reader on a phone would meet.
SEEN = """<script>addEventListener("load", () => {
  const pictures = [...document.images].map((x) => x.complete && x.naturalWidth > 0);
  const page = document.documentElement;
  const fits = page.scrollWidth <= page.clientWidth;
  document.title = JSON.stringify({ pictures, fits });
})</script>"""


@pytest.fixture(scope="module")
def report(tool, trained, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "report.html"
    result = tool(
        TOOL, f"--workdir={trained.workdir}", f"--output={output}", "--text=the <cat>"
    )
    assert result.returncode == 0, result.stderr
    [line] = map(json.loads, result.stdout.splitlines())
    assert line == {"output": str(output), "sections": SECTIONS}
    return output


def test_all_is_on_one_page(report, trained):
    page = report.read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == SECTIONS
    assert f"<h1>run, step {trained.run.step}</h1>" in page
    assert page.count("<img ") == 5  # curves, depth, two of spectra, tokens
    sources = re.findall('(?:src|href)="([^"]*)"', page)
    assert all(source.startswith("data:") for source in sources)
    assert "optimizer.learning_rate</td><td>0.05" in page
    assert "the &lt;cat&gt;" in page and "the <cat>" not in page
    assert (trained.workdir / "samples.txt").read_text().split()[-1] in page


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_browser_shows_it_on_a_phone(report, tmp_path):
    copy = tmp_path / "seen.html"
    copy.write_text(report.read_text().replace("</body>", SEEN + "</body>"))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844")
    flags += ("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}")
    command = [BROWSER, *flags, "--dump-dom", f"file://{copy}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    [title] = re.findall("<title>(.*?)</title>", result.stdout)
    assert json.loads(title) == {"pictures": [True] * 5, "fits": True}
    assert "CONSOLE" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (
            "--output=report.txt",
            "--output=report.txt: name an .html file that does not",
        ),
        ("--workdir=none", "none is no run: it has no config.json"),
        ("--text=", "sentence 1 is empty"),
    ],
)
def test_refuses(tool, trained, tmp_path, flag, words):
    given = (f"--workdir={trained.workdir}", f"--output={tmp_path / 'report.html'}")
    result = tool(TOOL, *given, flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"error: {words}")
    assert not (tmp_path / "report.html").exists()
