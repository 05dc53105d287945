"""Tasks of lm-evaluation-harness while a model trains (package lm_eval)."""

from collections.abc import Callable

from jax.sharding import Mesh

from diffeq_former.config import HarnessConfig, ModelConfig
from diffeq_former.errors import Interrupted
from diffeq_former.inference.harness import HarnessModel
from diffeq_former.inference.harness_tasks import Tasks

_BATCHES = 16  # between two checks whether to stop
_NOT_METRICS = ("task", "group", "num_fewshot", "samples")


class _Model(HarnessModel):
    """A model whose parameters change, and whose scoring can be stopped."""

    def _loglikelihood_tokens(self, requests, **_) -> list[tuple[float, bool]]:
        return self._in_parts(super()._loglikelihood_tokens, requests)

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False):
        return self._in_parts(super().loglikelihood_rolling, requests)

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        self._check()
        return super().generate_until(requests)

    def set(self, params: dict, should_stop: Callable[[], bool]) -> None:
        self._params, self._should_stop = params, should_stop

    def _in_parts(self, function, requests) -> list:
        size, results = _BATCHES * self._batch_size, []
        for start in range(0, len(requests), size):
            self._check()
            results += function(requests[start : start + size])
        return results

    def _check(self) -> None:
        if self._should_stop():
            raise Interrupted("stopped during the tasks of the harness")


def make_harness(
    c: HarnessConfig, model: ModelConfig, tokenizer, mesh: Mesh
) -> Callable[..., dict[str, float] | None]:
    """Return a function that evaluates parameters on the tasks of a config.

    Args:
      c: The tasks, and how they are evaluated.
      model: Config of the model.
      tokenizer: Tokenizer of the model.
      mesh: Mesh of the parameters.

    Returns:
      A function of (params, should_stop=...), which all processes must call: the
      metrics of each task, as TASK/METRIC, or None if a stop is requested.

    Raises:
      UserError: If a task is unknown, or its data cannot be loaded. The function raises
        it if a task has too few examples, or asks for answers that are too long.
    """
    tasks = Tasks(
        list(c.tasks),
        include_path=c.include_path or None,
        data=c.task_data or None,
        prefix="config.harness.",
    )
    scorer = _Model(model, {}, tokenizer, mesh, c.batch_size)

    def evaluate(params: dict, *, should_stop=lambda: False):
        scorer.set(params, should_stop)
        try:
            lines = tasks.evaluate(
                scorer,
                None if c.num_fewshot < 0 else c.num_fewshot,
                c.limit or None,
                c.max_new_tokens or None,
            )
        except Interrupted:
            return None
        finally:
            scorer.set({}, lambda: False)  # lets go of the parameters
        return {
            f"{line['task']}/{name}": float(value)
            for line in lines
            for name, value in line.items()
            if name not in _NOT_METRICS
        }

    return evaluate
