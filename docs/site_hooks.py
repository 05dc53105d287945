"""Hooks of mkdocs: the pages of the site that are not in docs/, and the links to them.

Pages link to code as they do on the repository page, as to ../diffeq_former/api.py. On
the site, a link to a module of the package leads to its reference, and one to another
file or folder of the repository to a page that shows it.
"""

import json
import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "diffeq_former"
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#]+)")
# Files of the repository that are pages of the site, and their names there.
PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    DOCS / "quickstart.ipynb": "quickstart.md",
}
BEFORE = {name: path for path, name in PAGES.items()}


def on_config(config):
    """Add the reference to the navigation, nested like the package."""
    config.nav.append({"Reference": _navigation(PACKAGE)})
    return config


def on_files(files, config):
    """Add the pages that are not in docs/."""
    pages = {name: _text(path) for name, path in BEFORE.items()}
    for path in [*DOCS.rglob("*.md"), *BEFORE.values()]:
        for target in _targets(path.parent, _text(path)):
            if _uri(target).startswith("source/"):
                pages[_uri(target)] = _shown(target)
    for module in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(module.relative_to(ROOT).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        pages[_uri(module)] = f"# {name}\n\n::: {name}\n"
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links out of docs/ to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith(("reference/", "source/")):
        return markdown
    folder = BEFORE.get(uri, DOCS / uri).parent

    def lead(match):
        target = _target(folder, match[2])
        if target is None:
            return match[0]
        return match[1] + os.path.relpath(_uri(target), os.path.dirname(uri) or ".")

    return LINK.sub(lead, markdown)


def _target(folder: Path, link: str) -> Path | None:
    """Return the file or folder that a link leads to; None: it is no such link."""
    path = Path(os.path.normpath(folder / link))
    return path if path.exists() else None


def _targets(folder: Path, text: str) -> list[Path]:
    found = (_target(folder, match[2]) for match in LINK.finditer(text))
    return [path for path in found if path is not None]


def _uri(path: Path) -> str:
    """Return the page of the site that stands for a file or folder."""
    if path in PAGES:
        return PAGES[path]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix().removeprefix(".")  # mkdocs omits .ci
    if path.is_relative_to(PACKAGE) and path.suffix == ".py":
        return f"reference/{name.removesuffix('.py').replace('__init__', 'index')}.md"
    if (path / "__init__.py").exists():
        return f"reference/{name}/index.md"
    return f"source/{name}.md"


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    sources = [
        (x["cell_type"], "".join(x["source"])) for x in json.loads(text)["cells"]
    ]
    return "\n\n".join(
        f"```python\n{source}\n```" if kind == "code" else source
        for kind, source in sources
    )


def _shown(path: Path) -> str:
    """Return a page that shows a file, or lists the files of a folder."""
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        names = sorted(x.name for x in path.iterdir() if x.name != "__pycache__")
        return title + "".join(f"- `{name}`\n" for name in names)
    language = {".py": "python", ".sh": "bash", ".json": "json"}.get(
        path.suffix, "text"
    )
    return f"{title}````{language}\n{path.read_text(encoding='utf-8')}\n````\n"


def _navigation(package: Path) -> list:
    entries = [_uri(package / "__init__.py")]
    for path in sorted(package.iterdir()):
        if (path / "__init__.py").exists():
            entries.append({path.name: _navigation(path)})
        elif path.suffix == ".py" and path.stem != "__init__":
            entries.append({path.stem: _uri(path)})
    return entries
