"""Tasks of EleutherAI's lm-evaluation-harness, with data from the hub or a folder."""

import contextlib
import difflib
import os
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from diffeq_former.errors import UserError
from diffeq_former.inference.harness import HarnessModel

RESAMPLES = 1000  # for the standard error of what has no formula for it


class Tasks:
    """Tasks, groups and tags by name.

    Args:
      names: of the harness, or of files in `include_path`.
      include_path: a folder of YAML files, which describe tasks.
      data: a folder with each task's dataset under the name it has on the hub; None:
        the hub.

    Raises:
      UserError: for an unknown name, or a task whose data cannot be had.
    """

    def __init__(
        self, names: list[str], include_path: str | None = None, data: str | None = None
    ):
        self._names, self._data = names, data
        self._manager = TaskManager(include_path=include_path)
        for name in names:
            self._check(name)

    def evaluate(
        self,
        model: HarnessModel,
        num_fewshot: int | None = None,
        limit: int | None = None,
        max_new_tokens: int | None = None,
    ) -> list[dict]:
        """Figures of each task: task, num_fewshot, samples, and the task's metrics.

        Args:
          model: that is evaluated.
          num_fewshot: examples before each question; None, and where a task insists
            on none: as the task has it.
          limit: the first so many samples of each task; None: all.
          max_new_tokens: longest answer; None: as the task has it.

        Raises:
          UserError: if a task has too few examples, or wants answers longer than the
            model.
        """
        answers = {"max_gen_toks": max_new_tokens} if max_new_tokens else None
        with self._quiet_place(), _enough_examples(num_fewshot):
            found = simple_evaluate(
                model,
                tasks=self._names,
                num_fewshot=num_fewshot,
                limit=limit,
                gen_kwargs=answers,
                task_manager=self._manager,
                bootstrap_iters=RESAMPLES,
                log_samples=False,
            )
        return [_figures(name, found) for name in found["results"]]

    def _check(self, name: str) -> None:
        if name not in self._manager.all_tasks:
            near = difflib.get_close_matches(name, self._manager.all_tasks, 1)
            hint = f"did you mean {near[0]}?" if near else "lm_eval ls tasks lists all"
            raise UserError(f"--tasks: the harness knows no task {name}; {hint}")
        try:
            with self._quiet_place():
                self._manager.load([name])
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"--tasks: task {name} cannot be loaded ({words}); its data must be on "
                "the hub or, as there, in a folder named by --task_data"
            ) from error

    @contextlib.contextmanager
    def _quiet_place(self):
        """Where the tasks' data are found by their names, and what the harness says of
        its work goes to stderr.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            if self._data is not None:
                stack.enter_context(contextlib.chdir(self._data))
            yield


@contextlib.contextmanager
def _enough_examples(num_fewshot: int | None):
    try:
        yield
    except ValueError as error:
        if "larger than population" not in str(error):
            raise
        raise UserError(
            f"--num_fewshot={num_fewshot}: a task has fewer examples; ask for fewer"
        ) from error


def _figures(name: str, found: dict) -> dict:
    """What was found of one task; the harness calls metrics "name,filter"."""
    metrics = {
        key.removesuffix(",none"): value
        for key, value in found["results"][name].items()
        if isinstance(value, int | float) and "," in key
    }
    samples = found["n-samples"].get(name, {}).get("effective")
    num_fewshot = found["n-shot"].get(name)
    return {"task": name, "num_fewshot": num_fewshot, "samples": samples, **metrics}


# Its pool of processes would fork one that runs threads.
os.environ["DISABLE_MULTIPROC"] = "1"
