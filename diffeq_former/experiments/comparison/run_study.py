"""A comparison of models, each at its best settings, on text that chose none of them.

First each model is trained with each combination of its searched values and one seed;
the best has the lowest last validation loss. Then the best of each model is trained
with several seeds and evaluated on held-out text. If trials are as long as these runs,
the best ones are those of the first seed.
"""

import math
import sys
from collections.abc import Sequence

from ml_collections import ConfigDict

from diffeq_former import api
from diffeq_former.analysis import plotting
from diffeq_former.config import resolve
from diffeq_former.data import dataset as datasets
from diffeq_former.errors import UserError
from diffeq_former.experiments import runs
from diffeq_former.experiments.comparison import report, searches
from diffeq_former.experiments.comparison.study import Comparison, load
from diffeq_former.experiments.measured import measured, validation_losses
from diffeq_former.inference.perplexity import SPLIT
from diffeq_former.inference.resolve_dataset import load_configured
from diffeq_former.training import metrics_file, run_directory

Chosen = dict[str, tuple[str, ...]]  # the best trial of each model


def run(
    config: ConfigDict,
    study_file: str,
    held_out: str | None,
    study: runs.Study,
    seeds: Sequence[int],
) -> None:
    """Train the runs that are not there, and report how the models compare.

    Runs that diverge have an infinite loss and do not end the study.

    Args:
      config: The config of the runs.
      study_file: A file as described in study.py.
      held_out: A prepared text of other documents, whose validation split is used;
        None for a study that only searches.
      study: The study, whose folder gets what report.py writes.
      seeds: The seeds of the runs that are compared; the first is that of the search.

    Raises:
      UserError: If the input is wrong, the study is done, or all trials of a model
        diverged.
      SystemExit: With the exit code of a run that does not end well.
    """
    comparison = load(study_file, config)
    _check_held_out(held_out, config, comparison.only_searches)
    last = searches.PICTURE if comparison.only_searches else report.PICTURE
    plotting.new_plot(str(study.folder / last))
    trials = _plan_trials(comparison, study, seeds[0]) if comparison.searches else []
    study.train(trials, may_diverge=True)
    chosen = _best(comparison, trials) if trials else comparison.given
    if comparison.only_searches:
        rows = [row | _measured(run) for row, run in trials]
        report.write_trials(study.folder, rows)
        searches.write(study.folder, comparison, rows)
        return
    warnings = {
        model: comparison.ends_of_ranges(model, trial)
        for model, trial in chosen.items()
    }
    for model, texts in warnings.items():
        for text in texts:
            print(f"warning: {model}: {text}", file=sys.stderr, flush=True)
    finals = _plan_finals(comparison, study, chosen, seeds)
    study.train(finals, may_diverge=True)
    trial_rows = [row | _measured(run) for row, run in trials]
    final_rows = [row | _measured(run, held_out) for row, run in finals]
    report.write(study.folder, comparison, trial_rows, final_rows, warnings)


def _check_held_out(
    held_out: str | None, config: ConfigDict, only_searches: bool
) -> None:
    """Check that a text is not that of training, and that the models can read it."""
    if only_searches and held_out is not None:
        raise UserError(
            f"--held_out={held_out}: the study has no final_settings, so that nothing"
            " is evaluated on it; leave it out"
        )
    if only_searches:
        return
    if held_out is None:
        raise UserError(
            "--held_out: name a prepared text of other documents than config.data.path,"
            " on which the models are compared"
        )
    trained_on = load_configured(resolve(config).data)
    other = datasets.load(held_out)
    if other.path.resolve() in [x.path.resolve() for x in trained_on.sources]:
        raise UserError(
            f"--held_out={held_out}: the settings are chosen by its losses; name a text"
            " of other documents than config.data.path"
        )
    if other.tokenizer_fingerprint != trained_on.tokenizer_fingerprint:
        raise UserError(
            f"--held_out={held_out}: it has another tokenizer than config.data.path;"
            f" prepare it with --tokenizer={trained_on.tokenizer_spec}"
        )
    run_directory.fit(resolve(config), other)
    other.split(SPLIT)


def _plan_trials(comparison: Comparison, study: runs.Study, seed: int) -> runs.Rows:
    planned = []
    for model in comparison.models:
        for trial in comparison.trials(model):
            settings = comparison.trial_settings(model, trial)
            run = study.named([f"trials/{model}", *trial], settings, seed)
            planned.append((_row(model, trial, seed), run))
    return planned


def _plan_finals(
    comparison: Comparison, study: runs.Study, chosen: Chosen, seeds: Sequence[int]
) -> runs.Rows:
    planned = []
    for model, trial in chosen.items():
        settings = comparison.final_run_settings(model, trial)
        as_tried = settings == comparison.trial_settings(model, trial)
        for seed in seeds:
            tried = comparison.searches and as_tried and seed == seeds[0]
            folder = "trials" if tried else "finals"
            run = study.named([f"{folder}/{model}", *trial], settings, seed)
            planned.append((_row(model, trial, seed), run))
    return planned


def _row(model: str, trial: tuple[str, ...], seed: int) -> dict:
    return {"model": model, "settings": " ".join(trial), "seed": seed}


def _best(comparison: Comparison, trials: runs.Rows) -> Chosen:
    """Return the trial of each model with the lowest last validation loss."""
    chosen = {}
    for model in comparison.models:
        losses = [_last_loss(run) for row, run in trials if row["model"] == model]
        if min(losses) == math.inf:
            raise UserError(
                f"all trials of {model!r} diverged; search lower learning rates for it"
            )
        chosen[model] = comparison.trials(model)[losses.index(min(losses))]
    return chosen


def _last_loss(run: runs.Run) -> float:
    if metrics_file.diverged(run.workdir):
        return math.inf
    return list(validation_losses(run.workdir).values())[-1]


def _measured(run: runs.Run, held_out: str | None = None) -> dict:
    """Return measurements of a run; its losses are infinite if it diverged."""
    row = {"validation_loss": _last_loss(run)}
    if held_out is not None:
        row["held_out_loss"] = math.inf
    if row["validation_loss"] == math.inf:
        return row
    row |= measured(run.workdir)
    if held_out is not None:
        metrics = api.load(run.workdir).evaluate(data=held_out)
        names = ("loss", "perplexity", "bits_per_byte")
        row |= {f"held_out_{name}": metrics[name] for name in names}
    return row
