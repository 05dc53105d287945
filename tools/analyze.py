"""Looks into a run's latest checkpoint: pictures, and the numbers behind them.

tools/analyze.py KIND --workdir=runs/small --output=small-spectra

Kinds: spectra (eigenvalues of the weights over depth; --num_times, --beside),
lyapunov (which tokens a prediction is sensitive to, and how fast perturbations grow;
--num_exponents), attention (maps), entropy (of the logit lens), trajectory (of the
states through depth): these four of a --text or of a --file's lines; clustering (tokens
that move by attention alone; --num_seeds, --num_times). tools/ablation.py trains runs
that differ in a setting, and draws what it changes.

--output is a new folder, whose index.html holds all pictures. Each line on stdout is
one JSON object of figures. The weights are made on the run's mesh, as for training:
--config.mesh.data=1 --config.mesh.fsdp=-1; all else on one device. Needs matplotlib:
pip install -e '.[plot]'.
"""

import inspect
import json
from pathlib import Path

from absl import flags

from diffeq_former import cli, pictures
from diffeq_former.analysis.kinds import KINDS
from diffeq_former.analysis.kinds.page import bind
from diffeq_former.errors import UserError
from diffeq_former.sharding import flags as mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_TEXT = flags.DEFINE_string("text", None, "A sentence.")
_FILE = flags.DEFINE_string("file", None, "A file of sentences, one a line.")
_OPTIONS = (
    flags.DEFINE_string("beside", None, "Another run's folder, to draw beside it."),
    flags.DEFINE_integer(
        "num_times", None, "Times over depth; else the model's layers.", lower_bound=1
    ),
    flags.DEFINE_integer(
        "num_exponents", None, "Leading Lyapunov exponents; else 3.", lower_bound=1
    ),
    flags.DEFINE_integer(
        "num_seeds", None, "Of random tokens and weights; else 5.", lower_bound=1
    ),
)
flags.adopt_module_key_flags(mesh_flags)
_ELSEWHERE = "; for a grid of runs: tools/ablation.py"


def main(kind: str) -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.analysis import trained as subjects
    from diffeq_former.data.output import complete_or_nothing

    compilation_cache.enable()
    pictures.require_matplotlib()
    options = _options(kind)
    if texts := options.pop("sentences", None):
        texts = subjects.read_sentences(Path(_FILE.value)) if _FILE.value else texts
    if "beside" in options:
        options["beside"] = _load(options["beside"])
    with complete_or_nothing(Path(_OUTPUT.value)) as folder:
        trained = _load(_WORKDIR.value)
        if texts:
            options["sentences"] = subjects.encode(trained, texts)
        figures = KINDS[kind](trained, folder, **options)
        bind(folder, f"{kind} of {trained.name}", figures)
    for line in figures:
        print(json.dumps({"kind": kind, **line}), flush=True)


def _options(kind: str) -> dict:
    """The flags that are given, which the kind must take, with its sentences."""
    given = {flag.name: flag.value for flag in _OPTIONS if flag.value is not None}
    if _TEXT.value is not None or _FILE.value is not None:
        given["sentences"] = [_TEXT.value]
    known = inspect.signature(KINDS[kind]).parameters
    for name in given.keys() - known:
        flag = "--text, --file" if name == "sentences" else f"--{name}"
        raise UserError(f"{flag}: {kind} does not look at it; leave it out")
    if "sentences" in known and (_TEXT.value is None) == (_FILE.value is None):
        raise UserError(f"{kind} needs either --text or --file: sentences to look at")
    return given


def _load(workdir: str):
    from diffeq_former.analysis.trained import Trained
    from diffeq_former.sharding.mesh import make_mesh
    from diffeq_former.training import run_directory

    own = run_directory.read_config(Path(workdir))
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    run = run_directory.load(workdir, mesh)
    name = Path(workdir).absolute().name
    return Trained(name, run.config.model, run.params, run.tokenizer, mesh)


if __name__ == "__main__":
    cli.run(main, choices=tuple(KINDS), elsewhere=_ELSEWHERE)
