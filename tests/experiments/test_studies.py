"""The studies that the project has: their settings are right, and models distinct."""

import runpy

import pytest
from command_lines import ROOT

from diffeq_former.experiments.comparison import study

STUDIES = sorted((ROOT / "configs" / "studies").glob("*.py"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_project(path):
    config = runpy.run_path(str(ROOT / "configs" / "small.py"))["get_config"]()
    found = study.load(str(path), config)
    assert len({tuple(settings) for settings in found.models.values()}) == len(
        found.models
    )
