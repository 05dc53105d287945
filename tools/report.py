"""Writes an HTML report of a run: its settings, training curves and analyses.

tools/report.py --workdir=runs/small --output=report.html

The page shows the settings, provenance (commit, versions, command, devices, data),
training curves, samples, perplexity by number of solver steps, spectra of the weights,
the sensitivity of a prediction to the tokens of --text, and costs; it is a single file
that opens offline. A run that was imported or converted, and not trained since, has no
provenance, training curves and samples; one without a dataset needs --data for the
perplexity. Stdout has one JSON object: output and sections.

The mesh is the run's own; if it does not suit the devices, set another as in training:
--config.mesh.data=1 --config.mesh.fsdp=-1. Requires the extra plot.
"""

import sys
import tempfile
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import pages, plotting
from diffeq_former.cli import mesh_flags
from diffeq_former.json_io import print_line

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new .html file.", required=True)
_DATA = flags.DEFINE_string(
    "data", None, "A prepared dataset with the run's tokenizer; default: the run's."
)
_TEXT = flags.DEFINE_string(
    "text", "It was the first time", "Text for the sensitivity analysis."
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.atomic_io import atomic_file, check_new

    output = Path(_OUTPUT.value)
    check_new(output, ".html")
    plotting.require_matplotlib()
    compilation_cache.enable()
    run = mesh_flags.load_run(_WORKDIR.value)
    sections = _sections(run)
    if "Depth" not in sections:
        print("report: no Depth without a dataset; add --data=DIR", file=sys.stderr)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for title, make in sections.items():
            print(f"report: {title}", file=sys.stderr, flush=True)
            parts.append(pages.section(title, make(Path(folder))))
    title = f"{run.name}, step {run.step}"
    with atomic_file(output) as partial:
        partial.write_text(pages.page(title, "\n".join(parts)), encoding="utf-8")
    print_line({"output": str(output), "sections": list(sections)})


def _sections(run) -> dict:
    """Return functions by title that write plots into a folder and return HTML.

    What the run has no metrics or no dataset for is left out.
    """
    from diffeq_former.analysis import run_report, training_curves

    metrics = training_curves.read(run.path)
    seq_len, config = run.config.model.max_len, run.config
    training = {
        "Provenance": lambda _: run_report.provenance_of(run.path),
        "Training": lambda folder: run_report.training(metrics, folder),
        "Samples": lambda _: run_report.samples(run.path / "samples.txt"),
    }
    evaluation = {
        "Depth": lambda folder: run_report.depth_curve(
            config, lambda n: run.evaluate(n, data=_DATA.value), seq_len, folder
        ),
    }
    return {
        "Settings": lambda _: run_report.settings(config),
        **(training if metrics else {}),
        **(evaluation if _DATA.value or config.data.folders else {}),
        "Spectra of the weights": lambda folder: run_report.weights(
            run.for_analysis, folder
        ),
        "Sensitivity": lambda folder: run_report.sensitivity(
            run.for_analysis, _TEXT.value, folder
        ),
        "Costs": lambda _: run_report.costs(config, run.params, metrics, seq_len),
    }


if __name__ == "__main__":
    cli.run(main)
