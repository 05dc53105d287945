"""Trains the models of all sections, analyses two of them, and writes a page."""

import sys
from collections.abc import Sequence
from pathlib import Path

from diffeq_former.analysis import pages, plotting
from diffeq_former.analysis.loaded_model import LoadedModel, Sentence, encode
from diffeq_former.analysis.registry import load as load_analysis
from diffeq_former.analysis.results import write_json
from diffeq_former.api import load
from diffeq_former.atomic_io import atomic_directory, check_new
from diffeq_former.config import Config
from diffeq_former.experiments import finetuning, runs
from diffeq_former.experiments.claims import RULE, verdict
from diffeq_former.experiments.paper.sections import OURS, PLAIN, Section, sections

PAGE, RUNS = "page", "runs"
# The analyses of a trained model, by what they show in the paper, and whether they take
# sentences or the plain transformer.
ANALYSES = (
    ("Figures 2a, 2b, E.1: spectra over depth", "spectra", "beside"),
    ("Section 5.1: induction heads", "induction", "beside"),
    ("Figures 2c, 2d, 13: clustering", "clustering", ""),
    ("Figure 3, appendix F: Lyapunov exponents", "lyapunov", "sentences"),
    ("Appendix F: attention maps", "attention", "sentences"),
)
SENTENCES = (
    "The captain gave his sister a letter, and she put it into the pocket of her",
    "Mr. Brown and his old friend walked down to the river, where Mr.",
    "It was the house in which the lady had lived with her father before the",
)
_NOT_HERE = (
    "Figures 1 and 17 are drawings, and Figure 6 is not mentioned in the text. Figures"
    " 9 to 12 need the data of eleven tasks: see tools/harness.py."
)


def run(
    config: Config,
    data: str,
    output: Path,
    study: runs.Study,
    tuning_configs: Path,
    tuning: dict[str, Sequence[str]],
    seeds: Sequence[int],
) -> None:
    """Train what is not trained yet, then write the page.

    Args:
      config: The DiffEqFormer; its baselines and variants follow from it.
      data: A second prepared text, to tune on.
      output: The folder of the page.
      study: The study; its folder is `RUNS` in that of the page.
      tuning_configs: The folder of full.py and lora.py.
      tuning: Further SECTION.FIELD=VALUE for each of `finetuning.MODES`.
      seeds: The seeds of each model; the first is analysed.

    Raises:
      UserError: If the page exists, or the two texts have the same name.
      SystemExit: With the exit code of a run that does not end well.
    """
    finetuning.check_names(config.data.path, data)
    check_new(output / PAGE)
    plotting.require_matplotlib()
    wanted = sections(config, data, tuning_configs, tuning, seeds)
    planned = [section.plan(study) for section in wanted]
    study.train([row for of_section in planned for row in of_section])
    workdirs = {row["model"]: run.workdir for row, run in reversed(planned[0])}
    with atomic_directory(output / PAGE) as folder:
        rows, verdicts, parts = [], [], []
        for section, of_section in zip(wanted, planned, strict=True):
            found = [row | section.measure(run.workdir) for row, run in of_section]
            results = [verdict(claim, found) for claim in section.claims]
            rows += [{"section": section.name} | row for row in found]
            verdicts += [{"section": section.title} | result for result in results]
            parts.append(_section(section, found, results, folder))
        parts += _analyses(workdirs[OURS], workdirs[PLAIN], folder)
        summary = pages.paragraph(RULE) + pages.table(verdicts)
        body = [pages.section("Verdicts", summary), *parts, pages.paragraph(_NOT_HERE)]
        c = config.model
        title = f"The paper's figures and tables at {c.num_layers} steps x {c.d_model}"
        (folder / "index.html").write_text(
            pages.page(title, "\n".join(body)), encoding="utf-8"
        )
        write_json(folder / "verdicts.json", verdicts)
        runs.report(folder, rows)


def _section(
    section: Section, rows: list[dict], results: list[dict], folder: Path
) -> str:
    picture = folder / f"{section.name}.png"
    section.plot(rows, picture)
    shown = [{key: row.get(key) for key in section.columns} for row in rows]
    body = [pages.table(results), pages.picture(picture)]
    body.append(pages.folded("all runs", pages.table(shown)))
    return pages.section(section.title, "\n".join(body))


def _analyses(ours: Path, plain: Path, folder: Path) -> list[str]:
    trained, beside = load(ours).for_analysis, load(plain).for_analysis
    given = {
        "beside": {"beside": beside},
        "sentences": {"sentences": _encoded(trained)},
        "": {},
    }
    parts = []
    for title, kind, takes in ANALYSES:
        print(f"analysis: {kind}", file=sys.stderr, flush=True)
        own = folder / kind
        own.mkdir()
        rows = load_analysis(kind)(trained, own, **given[takes])
        pictures = [pages.picture(path) for path in sorted(own.glob("*.png"))]
        parts.append(pages.section(title, "\n".join([pages.table(rows), *pictures])))
    return parts


def _encoded(trained: LoadedModel) -> list[Sentence]:
    """Return `SENTENCES`, without the first words of those that are too long."""
    tokenizer, texts = trained.tokenizer, []
    room = trained.config.max_len - len(tokenizer.before)
    for sentence in SENTENCES:
        words = sentence.split()
        while len(tokenizer.encode(" ".join(words))) > room:
            words.pop(0)
        texts.append(" ".join(words))
    return encode(trained, texts)
