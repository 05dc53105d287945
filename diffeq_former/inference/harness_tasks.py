"""Tasks of EleutherAI's lm-evaluation-harness, with data from the hub or a folder."""

import contextlib
import difflib
import os
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from diffeq_former.errors import UserError
from diffeq_former.inference.harness import HarnessModel

RESAMPLES = 1000  # bootstrap samples for standard errors without a closed form


class Tasks:
    """A selection of tasks to evaluate models on.

    Args:
      names: Tasks, groups or tags of the harness or of files in `include_path`.
      include_path: A folder of YAML files that define tasks.
      data: A folder with each task's dataset under its name on the hub; None: load
        from the hub.
      prefix: What precedes the names of settings in messages.

    Raises:
      UserError: If a name is unknown, or the data of a task cannot be loaded.
    """

    def __init__(
        self,
        names: list[str],
        include_path: str | None = None,
        data: str | None = None,
        prefix: str = "--",
    ):
        self._names, self._data, self._prefix = names, data, prefix
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
        """Evaluate a model on all tasks.

        Args:
          model: The model to evaluate.
          num_fewshot: Number of examples before each question; None: the task's own
            number. Tasks that are defined as zero-shot stay so.
          limit: Number of samples per task, the first ones; None: all.
          max_new_tokens: Maximum length of an answer; None: the task's own limit.

        Returns:
          For each task and group: task, num_fewshot, samples, its metrics with their
          standard errors, and for a part of a group, group.

        Raises:
          UserError: If a task has too few examples, or requests answers that are longer
            than the model's `max_len`.
        """
        gen_kwargs = {"max_gen_toks": max_new_tokens} if max_new_tokens else None
        with self._data_folder(), self._enough_examples(num_fewshot):
            results = simple_evaluate(
                model,
                tasks=self._names,
                num_fewshot=num_fewshot,
                limit=limit,
                gen_kwargs=gen_kwargs,
                task_manager=self._manager,
                bootstrap_iters=RESAMPLES,
                log_samples=False,
            )
        return [_metrics(name, results, num_fewshot) for name in results["results"]]

    def _check(self, name: str) -> None:
        if name not in self._manager.all_tasks:
            near = difflib.get_close_matches(name, self._manager.all_tasks, 1)
            hint = f"did you mean {near[0]}?" if near else "lm_eval ls tasks lists all"
            raise UserError(
                f"{self._prefix}tasks: the harness knows no task {name}; {hint}"
            )
        try:
            with self._data_folder():
                self._manager.load([name])
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"{self._prefix}tasks: task {name} cannot be loaded ({cause}); its data"
                " must be on the hub or, under the same name, in the folder given by"
                f" {self._prefix}task_data"
            ) from error

    @contextlib.contextmanager
    def _data_folder(self):
        """Change into the data folder, and send the harness's output to stderr.

        The harness opens a dataset by its name, which is then a relative path.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            if self._data is not None:
                stack.enter_context(contextlib.chdir(self._data))
            yield

    @contextlib.contextmanager
    def _enough_examples(self, num_fewshot: int | None):
        """Translate the harness's error about too few examples into a UserError."""
        try:
            yield
        except ValueError as error:
            if "larger than population" not in str(error):
                raise
            raise UserError(
                f"{self._prefix}num_fewshot={num_fewshot}: a task has fewer examples;"
                " ask for fewer"
            ) from error


def _metrics(name: str, results: dict, num_fewshot: int | None) -> dict:
    """Return the metrics of one task; the harness calls them "name,filter"."""
    metrics = {
        key.removesuffix(",none"): value
        for key, value in results["results"][name].items()
        if isinstance(value, int | float) and "," in key
    }
    groups = [g for g, parts in results["group_subtasks"].items() if name in parts]
    return {
        "task": name,
        "num_fewshot": results["n-shot"].get(name, num_fewshot),
        "samples": results["n-samples"].get(name, {}).get("effective"),
        **({"group": groups[0]} if groups else {}),
        **metrics,
    }


# The harness's process pool would fork this process, which runs threads.
os.environ["DISABLE_MULTIPROC"] = "1"
