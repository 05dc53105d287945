"""The site of docs/, built in strict mode, and that it refuses links to nowhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from runs import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs")


def build(source, site):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", site],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def links_of(page):
    return set(re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")))


def test_links_lead_to_pages_of_the_site(tmp_path):
    result = build(ROOT, tmp_path)
    assert result.returncode == 0, result.stderr
    assert {
        "../reference/diffeq_former/models/gpt/",
        "../reference/diffeq_former/analysis/",
        "../source/tools/",
    } <= links_of(tmp_path / "architecture/index.html")
    assert "architecture/" in links_of(tmp_path / "index.html")
    for path in (ROOT / "diffeq_former").rglob("*.py"):
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        page = tmp_path / "reference" / name.removesuffix("/__init__") / "index.html"
        assert page.exists(), path
    reference = (tmp_path / "reference/diffeq_former/api/index.html").read_text()
    assert "The sampling temperature; 0: greedy decoding." in reference


def test_links_to_nowhere_are_named(tmp_path):
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "diffeq_former", "configs", "tools", "tests", "launch"):
        shutil.copytree(ROOT / name, tmp_path / name)
    with (tmp_path / "docs/api.md").open("a") as page:
        page.write("\n[gone](gone.md) [code](../diffeq_former/gone.py) [x](#gone)\n")
    result = build(tmp_path, tmp_path / "site")
    assert result.returncode == 1
    for link in ("gone.md", "../diffeq_former/gone.py", "#gone"):
        assert f"contains a link '{link}'" in result.stderr
