"""The model card of an exported folder, README.md, and its front matter for the hub."""

from collections.abc import Mapping
from pathlib import Path

import jax
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from diffeq_former.config import Config
from diffeq_former.conversion.architecture import Architecture
from diffeq_former.conversion.diffeq_former_hf import CODE, OWN
from diffeq_former.data.dataset import MANIFEST
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object
from diffeq_former.training import metrics_file, provenance, run_directory
from diffeq_former.training.run_directory import LoadedRun

NAME = "README.md"
_TASK = "text-generation"
_METRICS = ("loss", "perplexity", "bits_per_byte")
_SETTINGS = (
    *("model.weights", "model.block", "model.solver", "model.d_model"),
    *("model.num_heads", "model.max_len", "model.vocab_size"),
    *("training.batch_size", "optimizer.name", "optimizer.learning_rate"),
)


def render(
    run: LoadedRun, architecture: Architecture, name: str, license: str | None
) -> str:
    """Return the card of an exported run, in Markdown.

    Paths of the machine that trained it are left out: cards are published.

    Args:
      run: The run as it is exported.
      architecture: The architecture of the export.
      name: The title.
      license: The license of the model, an identifier of the hub; None: unknown.

    Raises:
      UserError: If a file of the run is damaged.
    """
    trained = run_directory.read_config(run.path)
    sources = _sources(run.path)
    metrics = _validation_metrics(run)
    sections = (
        _title(run, architecture, name),
        _use(architecture, name),
        _depth(run, name),
        _training(run, trained, sources),
        _evaluation(run, trained, metrics),
        _provenance(run.path),
    )
    steps = [(c.model.solver, c.model.num_layers) for c in (trained, run.config)]
    results = metrics if steps[0] == steps[1] else {}  # else of another function
    header = _front_matter(name, license, sources, results)
    return f"---\n{header}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def _front_matter(
    name: str, license: str | None, sources: list[str], metrics: Mapping[str, float]
) -> str:
    on_hub = [hub for source in sources if (hub := hub_dataset(source))]
    evaluated = ", ".join(on_hub) or "text"
    results = [
        EvalResult(
            task_type=_TASK,
            dataset_type=on_hub[0] if on_hub else "text",
            dataset_name=f"{evaluated}, validation split",
            metric_type=metric,
            metric_value=value,
        )
        for metric, value in metrics.items()
    ]
    data = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag=_TASK,
        tags=["diffeq_former", "neural-ode", "arxiv:2503.01329"],
        datasets=on_hub or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml() + "\n"


def _sources(workdir: Path) -> list[str]:
    """Return the sources of text that a run was trained on; several of a mixture."""
    manifest = read_object(workdir / MANIFEST)
    found = manifest.get("sources", [manifest])
    return [dataset["source"] for dataset in found if dataset.get("source")]


def hub_dataset(source: str) -> str | None:
    """Return the name on the hub of a source of text; None: it is not on the hub."""
    kind, _, argument = source.partition(":")
    name = argument.partition("@")[0].partition(":")[0]
    if kind != "hf" or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:  # a folder of another machine
        return None
    return name


def _title(run: LoadedRun, architecture: Architecture, name: str) -> str:
    c = run.config.model
    size = sum(x.size for x in jax.tree.leaves(run.params))
    return f"""# {name}

A language model of diffeq_former: a transformer as the differential equation
dx/dt = f(x, W(t)) over depth ([Tong et al., 2025](https://arxiv.org/abs/2503.01329)).
The weights W(t) of its `{c.block}` blocks come from a `{c.weights}`, with {size:,}
parameters in all. `{c.solver}` integrates in {c.num_layers} steps, which are the layers
of this `{architecture.class_name}`."""


def _use(architecture: Architecture, name: str) -> str:
    option, note = "", ""
    if architecture is OWN:
        option = ", trust_remote_code=True"
        note = (
            f"\n\n`trust_remote_code=True` runs `{CODE.name}` from this folder, which"
            " needs\nPyTorch and transformers only; its license is Apache-2.0."
        )
    return f"""## Load

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "{name}"  # this folder, or its name on the hub
model = AutoModelForCausalLM.from_pretrained(path{option})
tokenizer = AutoTokenizer.from_pretrained(path)
```{note}"""


def _depth(run: LoadedRun, name: str) -> str:
    num_steps = run.config.model.num_layers
    return f"""## Change the depth

diffeq_former integrates the same weights in other numbers of steps, here each layer in
two steps of half the length:

```python
import diffeq_former

run = diffeq_former.load("{name}", num_steps={2 * num_steps})  # a local copy
print(run.generate("It was", max_new_tokens=50))
```"""


def _training(run: LoadedRun, trained: Config, sources: list[str]) -> str:
    if not run.step:
        return ""
    rows = {"data": ", ".join(map(_data, sources)), "steps trained": f"{run.step:,}"}
    for setting in _SETTINGS:
        section, field = setting.split(".")
        rows[setting] = f"`{getattr(getattr(trained, section), field)}`"
    return "## Training\n\n" + _table(("setting", "value"), rows)


def _data(source: str) -> str:
    if hub_dataset(source) or source.partition(":")[0] in ("tfds", "stdlib"):
        return f"`{source}`"
    return "local files"


def _evaluation(run: LoadedRun, trained: Config, metrics: Mapping) -> str:
    if not metrics:
        return ""
    values = {name: f"{value:.4g}" for name, value in metrics.items()}
    return (
        f"## Evaluation\n\nOf the validation split, in the {trained.model.num_layers}"
        f" steps of training; the loss is in nats per token.\n\n"
        + _table(("metric", "value"), values)
    )


def _validation_metrics(run: LoadedRun) -> dict[str, float]:
    """Return the validation metrics at the step of the run's checkpoint."""
    found = {}
    for record in metrics_file.read(run.path):
        for name in _METRICS:
            value = record.get(metrics_file.VALIDATION + name)
            if record["step"] == run.step and isinstance(value, float):
                found[name] = value
    return found


def _provenance(workdir: Path) -> str:
    records = provenance.read(workdir)
    if not records:
        return ""
    last = records[-1]
    try:
        changed = " with changes" if last["modified"] else ""
        rows = {
            "commit": f"`{last['commit']}`{changed}",
            "versions": ", ".join(f"{n} {x}" for n, x in last["versions"].items()),
            "devices": last["devices"],
            "started": last["time"],
            "SHA-256 of dataset.json": f"`{last['data_sha256']}`",
        }
    except (KeyError, AttributeError) as error:
        path = workdir / provenance.NAME
        raise UserError(f"{path} is damaged: {error}; remove it") from error
    if last["commit"] is None:  # not trained from a repository
        del rows["commit"]
    return "## Provenance\n\n" + _table(("of the last start", "value"), rows)


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    pairs = [head, ("---", "---"), *rows.items()]
    return "\n".join(f"| {key} | {value} |" for key, value in pairs)
