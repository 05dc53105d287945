"""Mutation testing: which small changes of the code do the tests notice?

    pip install -c constraints.txt -e '.[test,quality]'
    python tests/mutate.py --output=mutants [--num_workers=2] [ode/solvers.py ...]

Each file of TESTS (or those named) is changed in one place at a time, by cosmic-ray: a
number by one, an operator or comparison to another, a condition negated, a decorator
removed. The tests named beside the file run on each such mutant, in copies of this
checkout; a mutant is killed if one of them fails or runs for too long. The same command
resumes where it was interrupted. At the end it prints the table of docs/testing.md, and
survivors.diff in the output folder has the mutants that lived.
"""

import concurrent.futures
import queue
import shutil
import subprocess
import sys
import time
from pathlib import Path

from absl import app, flags, logging
from cosmic_ray.tools.filters import operators_filter
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
PACKAGE = "diffeq_former"

MODEL = "tests/models/test_transformer.py tests/models/test_plain_transformers.py"
START = "tests/models/test_initialisation.py"
STEP = "tests/training/test_step.py tests/training/test_golden_losses.py"
AUTHORS = "tests/conversion/test_qkvflow.py"
# The tests of each file, those that fail soonest first.
TESTS = {
    "ode/grid.py": f"tests/ode {MODEL}",
    "ode/solvers.py": f"tests/ode {MODEL}",
    "config/model_validation.py": (
        "tests/config/test_config.py tests/models/test_stabilisers.py"
        " tests/models/test_lora.py"
    ),
    "models/attention.py": (
        f"tests/models/test_attention.py tests/models/test_attention_kernels.py {MODEL}"
    ),
    "models/attention_kernels.py": (
        "tests/models/test_attention_kernels.py tests/models/test_attention.py"
    ),
    "models/block.py": MODEL,
    "models/blockwise_attention.py": "tests/models/test_attention_kernels.py",
    "models/dropout.py": (
        "tests/models/test_dropout.py tests/models/test_attention.py"
        " tests/training/test_gradients.py"
    ),
    "models/embedding.py": (f"tests/models/test_attention.py {MODEL} {AUTHORS} {STEP}"),
    "models/gpt.py": f"{START} {MODEL} {AUTHORS}",
    "models/grid.py": MODEL,
    "models/hypernetwork.py": (
        f"tests/models/test_hypernetwork.py {AUTHORS} {START} {MODEL}"
    ),
    "models/init_scale.py": f"{START} tests/models/test_plain_transformers.py",
    "models/linear.py": (
        "tests/models/test_linear.py tests/models/test_lora.py"
        " tests/training/test_trainable.py"
    ),
    "models/llama.py": f"{START} {MODEL} {AUTHORS} tests/conversion/test_hf_folders.py",
    "models/lora.py": (
        "tests/models/test_lora.py tests/finetuning/test_adapters.py"
        " tests/training/test_trainable.py"
    ),
    "models/loss.py": f"tests/models/test_loss.py {STEP}",
    "models/norms.py": f"tests/models/test_plain_transformers.py {MODEL}",
    "models/parameters.py": f"{START} tests/models/test_lora.py {STEP} {MODEL}",
    "models/partition.py": "--mesh tests/distributed",
    "models/positions.py": f"{MODEL} tests/conversion/test_hf_folders.py",
    "models/remat.py": "tests/models/test_remat.py",
    "models/scan.py": (
        f"tests/models/test_attention.py tests/models/test_remat.py {MODEL}"
        " tests/training/test_regularisers.py"
    ),
    "models/stabilisers.py": f"tests/models/test_plain_transformers.py {MODEL} {START}",
    "models/step.py": (
        f"tests/models/test_attention.py tests/models/test_lora.py {MODEL}"
        " tests/models/test_remat.py"
    ),
    "models/time_embedding.py": (
        f"tests/models/test_time_embedding.py {START} {MODEL} {STEP}"
    ),
    "models/transformer.py": (
        f"{MODEL} tests/models/test_attention.py tests/inference/test_generate.py"
        " tests/training/test_regularisers.py"
    ),
    "models/transport.py": "tests/training/test_regularisers.py",
    "models/weight_specs.py": (
        f"tests/finetuning/test_discretise.py tests/models/test_lora.py {START} {MODEL}"
    ),
    "models/weight_sources.py": (
        f"{START} {MODEL} tests/models/test_lora.py tests/conversion"
    ),
    **dict.fromkeys(
        (
            "training/checkpoint/restoring.py",
            "training/checkpoint/saving.py",
            "training/checkpoint/structure.py",
        ),
        "tests/training/test_checkpoint.py tests/training/test_damaged_checkpoints.py"
        " tests/training/test_retention.py"
        " tests/training/test_loop.py",
    ),
    "training/checkpoint/checksums.py": (
        "tests/training/test_checksums.py tests/training/test_damaged_checkpoints.py"
    ),
    "training/gradients.py": (
        f"tests/training/test_gradients.py tests/training/test_regularisers.py {STEP}"
    ),
    "training/bank_gradient.py": f"tests/training/test_update.py {STEP}",
    "training/optimizer.py": (
        "tests/training/test_schedules.py tests/training/test_optimizer.py"
        f" tests/training/test_update.py {STEP}"
    ),
    "training/step.py": f"tests/training/test_loop.py {STEP}",
    "training/update.py": (
        f"tests/training/test_update.py tests/training/test_loop.py {STEP}"
    ),
    "data/pipeline.py": "tests/data/test_pipeline.py",
    "data/rows.py": "tests/data/test_rows.py tests/data/test_dataset.py",
}

# Of the many replacements of one operator, those after which most programs still run.
KEPT_REPLACEMENTS = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul"),
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
    *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "LtE_GtE", "GtE_LtE"),
    *("Delete_USub", "Delete_Not"),
)
EXCLUDED = (
    "core/Variable(Replacer|Inserter)",
    f"core/Replace[A-Za-z]+_(?!({'|'.join(KEPT_REPLACEMENTS)})$)",
)


_OUTPUT = flags.DEFINE_string("output", None, "Folder of results.", required=True)
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 2, "Mutants that run at once.")


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)  # cosmic-ray reports each mutant
    output, files = Path(_OUTPUT.value).resolve(), argv[1:] or list(TESTS)
    if unknown := set(files) - TESTS.keys():
        sys.exit(f"no tests are named for {', '.join(sorted(unknown))}: add to TESTS")
    copies = queue.Queue()
    for k in range(_NUM_WORKERS.value):
        copies.put(_copy_of_the_checkout(output / f"checkout-{k}"))
    sessions = {file: output / f"{file.replace('/', '-')}.sqlite" for file in files}
    with concurrent.futures.ThreadPoolExecutor(_NUM_WORKERS.value) as pool:
        runs = [
            pool.submit(_run, file, session, copies, output)
            for file, session in sessions.items()
        ]
        for done in tqdm(concurrent.futures.as_completed(runs), total=len(runs)):
            done.result()
    _report(sessions, output)


def _copy_of_the_checkout(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    for name in (PACKAGE, "configs", "tools", "launch", "docs", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, path / name, ignore=ignore)
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, path)
    return path


def _run(file: str, session: Path, copies: queue.Queue, output: Path) -> None:
    """Runs the mutants of a file that have not been run yet."""
    checkout = copies.get()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-o", f"cache_dir={output / 'cache'}"]
    command += TESTS[file].split()
    start = time.monotonic()
    unchanged = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    if unchanged.returncode:
        sys.exit(f"{file}: its tests fail without a mutant:\n{unchanged.stdout}")
    seconds = time.monotonic() - start
    config = session.with_suffix(".toml")
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = '{PACKAGE}/{file}'\n"
        f"timeout = {20 + 3 * seconds:.0f}\n"
        "excluded-modules = []\n"
        f"test-command = '{' '.join(command)}'\n"
        "[cosmic-ray.distributor]\nname = 'local'\n"
        f"[cosmic-ray.filters.operators-filter]\nexclude-operators = {list(EXCLUDED)}\n"
    )
    if not session.exists():
        draft = session.with_suffix(".partial")
        draft.unlink(missing_ok=True)
        _cosmic_ray("init", config, draft, cwd=checkout)
        operators_filter.main([str(draft), str(config)])
        draft.rename(session)
    _cosmic_ray("exec", config, session, cwd=checkout)
    copies.put(checkout)


def _cosmic_ray(*arguments: object, cwd: Path) -> None:
    command = [sys.executable, "-m", "cosmic_ray.cli", *map(str, arguments)]
    subprocess.run(command, cwd=cwd, check=True)


def _report(sessions: dict[str, Path], output: Path) -> None:
    """Prints how many mutants of each file were killed; writes down the others."""
    print("| file | mutants | killed | score |\n|---|---|---|---|")
    total, all_killed, survivors = 0, 0, []
    for file, session in sessions.items():
        with use_db(session, WorkDB.Mode.open) as db:
            results = [result for _, result in db.completed_work_items]
        results = [r for r in results if r.worker_outcome != WorkerOutcome.SKIPPED]
        killed = sum(r.is_killed for r in results)
        survivors += [r.diff for r in results if not r.is_killed]
        total, all_killed = total + len(results), all_killed + killed
        _print_row(file, len(results), killed)
    _print_row("all", total, all_killed)
    (output / "survivors.diff").write_text("\n".join(survivors))


def _print_row(file: str, mutants: int, killed: int) -> None:
    share = f"{killed / mutants:.0%}" if mutants else ""
    print(f"| {file} | {mutants} | {killed} | {share} |")


if __name__ == "__main__":
    app.run(main)
