"""The folders of tests/conversion/fixtures, and copies to damage."""

import json
import shutil
from pathlib import Path

FIXTURES = Path(__file__).parent / "conversion/fixtures"


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def edit(path: Path, **changes) -> None:
    """Changes entries of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
