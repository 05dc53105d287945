"""A study file: the models to compare, and what is searched for each.

Its get_study() returns a dict:

    baseline: the name of the model that the others are compared with.
    models: for each name, the SECTION.FIELD=VALUE that the model has beside --config.
    search: for each name, the values to try of each SECTION.FIELD; all combinations are
      tried, and their number is the same for each model. Without it, nothing is.
    search_settings: SECTION.FIELD=VALUE of all trials, such as their number of steps.
    final_settings: the same of the runs that are compared; without it, only searches
      are, which then are those of one number.
"""

import dataclasses
import itertools
import re
import runpy
from collections.abc import Iterator

from ml_collections import ConfigDict

from diffeq_former.config.dataclass_config import build
from diffeq_former.config.loading import overridden
from diffeq_former.errors import UserError


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The contents of a study file."""

    baseline: str
    models: dict
    search: dict = dataclasses.field(default_factory=dict)
    search_settings: tuple[str, ...] = ()
    final_settings: tuple[str, ...] = ()
    only_searches: bool = False  # the file has no final_settings

    def trials(self, model: str) -> list[tuple[str, ...]]:
        """Return all combinations of a model's searched values."""
        searched = self.search.get(model, {})
        return [
            tuple(f"{name}={x}" for name, x in zip(searched, values, strict=True))
            for values in itertools.product(*searched.values())
        ]

    def trial_settings(self, model: str, trial: tuple[str, ...]) -> list[str]:
        """Return the settings of a run that tries out a combination of values."""
        return [*self.models[model], *self.search_settings, *trial]

    def final_run_settings(self, model: str, trial: tuple[str, ...]) -> list[str]:
        """Return the settings of a run that is compared."""
        return [*self.models[model], *self.final_settings, *trial]

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """The only trial of each model, if nothing is searched."""
        return {model: self.trials(model)[0] for model in self.models}

    @property
    def searches(self) -> bool:
        """Whether there are several trials, of which the best is chosen."""
        return len(self.trials(self.baseline)) > 1

    @property
    def searched(self) -> str | None:
        """The setting that is searched, if it is one number for all models."""
        if not self.searches:
            return None
        searches = list(self.search.values())
        [first, *others] = {name: None for search in searches for name in search}
        alone = not others and all(first in search for search in searches)
        if alone and all(is_numeric(search[first]) for search in searches):
            return first
        return None

    def ends_of_ranges(self, model: str, trial: tuple[str, ...]) -> list[str]:
        """Describe the numbers of a trial that are at an end of the searched range."""
        found = []
        for setting, (name, values) in zip(
            trial, self.search.get(model, {}).items(), strict=True
        ):
            if not is_numeric(values) or len(values) == 1:
                continue
            ends = min(values), max(values)
            if setting in [f"{name}={x}" for x in ends]:
                found.append(
                    f"{setting} is at an end of the searched range ({ends[0]} to"
                    f" {ends[1]}): search further values"
                )
        return found


def is_numeric(values: list) -> bool:
    """Return whether all values are numbers."""
    return all(type(x) in (int, float) for x in values)


def load(path: str, config: ConfigDict) -> Comparison:
    """Load a study file, and check the settings of all of its runs.

    Raises:
      UserError: If it is not a study, or the config does not allow a setting.
    """
    try:
        values = runpy.run_path(path)["get_study"]()
    except OSError:
        raise  # it names the file
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError) and error.args == ("get_study",):
            reason = "the file defines no get_study()"
        raise UserError(f"--study={path}: {reason}") from error
    try:
        return _checked(values, config)
    except UserError as error:
        raise UserError(f"--study={path}: {error}") from error


def _checked(values: object, config: ConfigDict) -> Comparison:
    if isinstance(values, ConfigDict):
        values = values.to_dict()
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise UserError(f"get_study() returned {kind}; return a dict of the study")
    for name in ("baseline", "models"):
        if name not in values:
            raise UserError(f"get_study() returned no {name!r}; add it")
    only_searches = {"only_searches": "final_settings" not in values}
    comparison = build(Comparison, values | only_searches, "study")
    _check_names(comparison)
    _check_search(comparison)
    for model, settings in _all_settings(comparison):
        try:
            overridden(config, settings, flag="study")
        except UserError as error:
            raise UserError(f"model {model!r}: {error}") from error
    return comparison


def _check_names(c: Comparison) -> None:
    for name, settings in c.models.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w .+-]+", name):
            raise UserError(
                f"models: {name!r} names a folder; use letters, digits, spaces and"
                " any of _.+- only"
            )
        texts = isinstance(settings, list | tuple)
        if not texts or not all(isinstance(x, str) for x in settings):
            raise UserError(
                f"models: expected a list of SECTION.FIELD=VALUE for {name!r}, got"
                f" {settings!r}"
            )
    if c.baseline not in c.models:
        known = ", ".join(map(str, c.models))
        raise UserError(f"baseline: no model {c.baseline!r}; expected one of {known}")
    if len(c.models) < 2:
        raise UserError("models: expected two or more to compare")


def _check_search(c: Comparison) -> None:
    for name in c.models.keys() ^ c.search.keys() if c.search else ():
        where = "search: no settings of" if name in c.models else "search: no model"
        raise UserError(f"{where} {name!r}; search and models need the same names")
    for model, searched in c.search.items():
        if not isinstance(searched, dict):
            raise UserError(
                f"search: expected SECTION.FIELD and values for {model!r}, got"
                f" {searched!r}"
            )
        for name, values in searched.items():
            if not isinstance(values, list | tuple) or not values:
                raise UserError(
                    f"search: expected a list of values of {name} for {model!r}, got"
                    f" {values!r}"
                )
    numbers = {model: len(c.trials(model)) for model in c.models}
    if len(set(numbers.values())) > 1:
        found = ", ".join(f"{number} of {model}" for model, number in numbers.items())
        raise UserError(
            f"search: the numbers of trials differ ({found}); give each model the same"
            " number"
        )
    if c.only_searches and c.searched is None:
        raise UserError(
            "search: without final_settings, the searches of one number are compared;"
            " search the same one for all models, or add final_settings"
        )


def _all_settings(c: Comparison) -> Iterator[tuple[str, list[str]]]:
    for model in c.models:
        for trial in c.trials(model):
            yield model, c.trial_settings(model, trial)
            yield model, c.final_run_settings(model, trial)
