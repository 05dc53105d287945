"""Analyses a run's latest checkpoint: writes values, plots and a page that shows them.

tools/analyze.py KIND --workdir=runs/small --output=small-spectra
tools/analyze.py stabilisers --data=data/stdlib --output=runs/stabilisers

Kinds: spectra (eigenvalues of the weights over depth; --num_times, --head, --beside);
induction (scores of each head on repeated random tokens; --beside);
clustering (tokens that move by attention alone; --num_seeds, --num_times,
--polynomials, --horizon, --step_size, --normalisation, --equal_integrals); and, for a
--text or each line of a --file: lyapunov (which tokens a prediction is sensitive to,
and how fast perturbations grow; --num_exponents), attention (maps), entropy (of the
logit lens), trajectory (of the states over depth), adversarial (the largest change of
the loss by small changes of the embeddings) and pde (adding diffusion along the
sequence). antecedent (do measures of sensitivity find the word that the next word
refers to?) has sentences of its own, or a --file of JSON lines. The kinds stabilisers
(transformers without residual connections or norms, or with shorter steps) and
simulator (a PDE simulator, to which they are added, beside the transformer) train many
small runs themselves: on --data, --training_steps each, on the grid of --residuals,
--norms, --steps, --depths, --learning_rates and --num_seeds. For the effect of any
other setting, see tools/experiment.py ablation.

With --num_steps and --solver, a run is analysed with other solver steps than those of
training.

--output is a new folder, whose index.html shows all plots. For these two it has a file
for each run, so that the same command resumes an interrupted study, and a folder
report. Each line on stdout is a JSON object of metrics. The weights of a run are
generated on its mesh, as in training: --config.mesh.data=1 --config.mesh.fsdp=-1;
everything else runs on one device. Requires the extra plot.
"""

import inspect
from collections.abc import Callable
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import plotting
from diffeq_former.analysis.registry import KINDS, load
from diffeq_former.analysis.results import bind
from diffeq_former.cli import mesh_flags, solver_flags
from diffeq_former.errors import UserError
from diffeq_former.experiments.stabilisers.study import simulator, stabilisers
from diffeq_former.json_io import print_line

# Kinds that train their own runs: functions (output, *, options) -> rows.
STUDIES: dict[str, Callable[..., list[dict]]] = {
    "stabilisers": stabilisers,
    "simulator": simulator,
}

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_TEXT = flags.DEFINE_string("text", None, "A sentence to analyse.")
_FILE = flags.DEFINE_string("file", None, "A file with a sentence on each line.")
_OPTIONS = (
    flags.DEFINE_string("beside", None, "Another run's folder, plotted next to it."),
    flags.DEFINE_integer(
        "num_times",
        None,
        "Times over depth; default: one per layer.",
        lower_bound=1,
        upper_bound=10_000,
    ),
    flags.DEFINE_integer(
        "head",
        None,
        "Head whose eigenvalues are tracked; default: 0.",
        lower_bound=0,
        upper_bound=10_000,
    ),
    flags.DEFINE_integer(
        "num_exponents",
        None,
        "Leading Lyapunov exponents; default: 3.",
        lower_bound=1,
        upper_bound=10_000,
    ),
    flags.DEFINE_integer(
        "num_seeds",
        None,
        "Random seeds; default: 5, for stabilisers 2, for simulator 3.",
        lower_bound=1,
        upper_bound=10_000,
    ),
    flags.DEFINE_list(
        "polynomials",
        None,
        "Growth of the simulated weights, (t/T)^p or (1+t)^p; default: (t/T)^0 to ^4.",
    ),
    flags.DEFINE_float(
        "horizon",
        None,
        "Time T at which the simulation ends; default: 10.",
        lower_bound=1e-3,
        upper_bound=1e6,
    ),
    flags.DEFINE_float(
        "step_size", None, "Longest step of the simulation; default: 0.05."
    ),
    flags.DEFINE_enum(
        "normalisation",
        None,
        ["sphere", "standardise", "none"],
        "Of the simulated tokens after each step; default: sphere.",
    ),
    flags.DEFINE_bool(
        "equal_integrals",
        None,
        "Whether to scale all polynomials to the same integral; default: true.",
    ),
    flags.DEFINE_string("data", None, "A prepared dataset to train on."),
    flags.DEFINE_list("residuals", None, "Residual coefficients; default: all."),
    flags.DEFINE_list("norms", None, "Positions of the norms; default: all."),
    flags.DEFINE_list("steps", None, "Step sizes over depth; default: 1,1/L."),
    flags.DEFINE_list(
        "depths", None, "Numbers of layers; default: 4,12, for simulator 4."
    ),
    flags.DEFINE_list(
        "learning_rates", None, "Rates after warm-up; default: from 1e-3 to 1e-2."
    ),
    flags.DEFINE_integer(
        "training_steps",
        None,
        "Optimizer steps of each run; default: 150.",
        lower_bound=1,
    ),
)
_SOLVER_FLAGS = solver_flags.define()
flags.adopt_module_key_flags(mesh_flags)
_HINT = "; to train a grid of runs, use tools/experiment.py ablation"


def main(kind: str) -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.analysis import loaded_model
    from diffeq_former.atomic_io import atomic_directory

    compilation_cache.enable()
    plotting.require_matplotlib()
    options = _options(kind)
    if kind in STUDIES:
        return _print(kind, STUDIES[kind](Path(_OUTPUT.value), **options))
    if texts := options.pop("sentences", None):
        texts = loaded_model.read_sentences(Path(_FILE.value)) if _FILE.value else texts
    if "beside" in options:
        options["beside"] = _SOLVER_FLAGS.load_run(options["beside"]).for_analysis
    with atomic_directory(Path(_OUTPUT.value)) as folder:
        trained = _SOLVER_FLAGS.load_run(_WORKDIR.value).for_analysis
        if texts:
            options["sentences"] = loaded_model.encode(trained, texts)
        rows = load(kind)(trained, folder, **options)
        bind(folder, f"{kind} of {trained.name}", rows)
    _print(kind, rows)


def _print(kind: str, rows: list[dict]) -> None:
    for line in rows:
        print_line({"kind": kind, **line})


def _options(kind: str) -> dict:
    """Return the given flags as options, after checking that the kind takes them."""
    given = {flag.name: flag.value for flag in _OPTIONS if flag.value is not None}
    known = inspect.signature(STUDIES.get(kind) or load(kind)).parameters
    texts = {f.name: f.value for f in (_TEXT, _FILE) if f.value is not None}
    if "file" in known:
        given |= texts
    elif texts:
        given["sentences"] = [_TEXT.value]
    if _WORKDIR.value is not None and kind in STUDIES:
        given["workdir"] = _WORKDIR.value
    if kind in STUDIES:
        given |= _SOLVER_FLAGS.given()
    for name in sorted(given.keys() - known):
        flag = "--text, --file" if name == "sentences" else f"--{name}"
        raise UserError(f"{flag}: {kind} does not use it; leave it out")
    if "data" in known and "data" not in given:
        raise UserError(f"{kind} needs --data: a prepared dataset to train on")
    if kind in KINDS and _WORKDIR.value is None:
        raise UserError(f"{kind} needs --workdir: the folder of a run to analyse")
    if "sentences" in known and (_TEXT.value is None) == (_FILE.value is None):
        raise UserError(f"{kind} needs either --text or --file: sentences to analyse")
    return given


if __name__ == "__main__":
    cli.run(main, choices=(*KINDS, *STUDIES), elsewhere=_HINT)
