"""Training steps in PyTorch with the same workload as in train.py.

B sequences of a micro-batch, L sequence length, V vocabulary.
"""

import dataclasses
import gc
import sys
import time
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from diffeq_former.benchmarks.rates import rates
from diffeq_former.benchmarks.timing import alternate, host_peak, spread
from diffeq_former.benchmarks.torch_models import make_model
from diffeq_former.config import Config
from diffeq_former.errors import UserError

_MULTIPLE = 128  # of the padded vocabulary, which suits matrix units


def plain(config: Config) -> Config:
    """Return the config of the plain transformer of the same shapes."""
    model = dataclasses.replace(
        config.model,
        weights="layer_table",
        solver="lie_trotter",
        generate_weights="tabulated",
    )
    return dataclasses.replace(config, model=model)


def device_kind() -> str:
    """Return the name of the GPU, or `cpu` without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


class Trainer:
    """A model and its optimizer, trained on micro-batches of `rows` random sequences.

    Parameters, gradients and moments are float32; matrix products use `model.dtype`.
    """

    def __init__(self, config: Config, vocab_size: int, rows: int, compiled: bool):
        self._config = config
        self._on_gpu = torch.cuda.is_available()
        with torch.device("cuda" if self._on_gpu else "cpu"):
            self._model = make_model(config.model, vocab_size)
            self._batches = _random_batches(config, rows)
        self._optimizer = _adamw(config, self._model, fused=self._on_gpu)
        self._loss = self._mean_loss
        if compiled:
            self._loss = torch.compile(self._loss, fullgraph=True, dynamic=False)
        start = time.perf_counter()
        self._forward_and_backward(*self._batches[0]).item()
        self.compile_seconds = time.perf_counter() - start
        self._optimizer.zero_grad()

    def run(self, steps: int) -> float:
        """Train for some steps, wait for them, and return the last loss."""
        for _ in range(steps):
            for batch in self._batches:
                loss = self._forward_and_backward(*batch)
            if clip_norm := self._config.optimizer.clip_norm:
                torch.nn.utils.clip_grad_norm_(self._model.parameters(), clip_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss.item()

    def _forward_and_backward(
        self, inputs_BL: torch.Tensor, targets_BL: torch.Tensor
    ) -> torch.Tensor:
        loss = self._loss(inputs_BL, targets_BL)
        (loss / len(self._batches)).backward()
        return loss.detach()

    def _mean_loss(self, inputs_BL: torch.Tensor, targets_BL: torch.Tensor):
        lower = self._config.model.dtype == "bfloat16"
        with torch.autocast(inputs_BL.device.type, torch.bfloat16, enabled=lower):
            logits_BLV = self._model(input_ids=inputs_BL).logits
        return F.cross_entropy(logits_BLV.flatten(0, 1).float(), targets_BL.flatten())


def benchmark(
    config: Config, batch_sizes: list[int], rounds: int, steps: int, compiled: bool
) -> Iterator[dict]:
    """Yield one record for the vocabulary as it is, and one for the padded vocabulary.

    Each record is that of the fastest micro-batch size; `tried` has the tokens per
    second of all sizes, None for those that run out of memory. Padding does not count
    as work. The second record is omitted if the vocabulary needs no padding.

    Raises:
      UserError: If a size does not divide the batch size, or none fits in memory.
    """
    _require_divisors(batch_sizes, config.training.batch_size)
    torch.set_float32_matmul_precision("high")  # TF32, as in JAX
    config = plain(config)
    own = config.model.vocab_size
    padded = -(-own // _MULTIPLE) * _MULTIPLE
    for vocab_size in dict.fromkeys((own, padded)):
        variant = "torch" if vocab_size == own else "torch_padded_vocabulary"
        tried = {}
        for rows in batch_sizes:
            tried[rows] = _measured(config, vocab_size, rows, rounds, steps, compiled)
            _log(variant, rows, tried[rows])
        if not any(tried.values()):
            raise UserError(
                f"--batch_sizes: none fits in the memory of {device_kind()};"
                " use smaller sizes"
            )
        speeds = {rows: x and x["tokens_per_second"] for rows, x in tried.items()}
        fastest = max(speeds, key=lambda rows: speeds[rows] or 0)
        yield {
            "variant": variant,
            "vocab_size": vocab_size,
            "micro_batch_size": fastest,
            **tried[fastest],
            "tried": speeds,
        }


def _measured(
    config: Config, vocab_size: int, rows: int, rounds: int, steps: int, compiled: bool
) -> dict | None:
    """Benchmark one micro-batch size; None if the device runs out of memory."""
    torch.compiler.reset()  # then free the memory of the previous size
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        trainer = Trainer(config, vocab_size, rows, compiled)
        seconds = alternate({"": lambda: trainer.run(steps)}, rounds)[""]
    except torch.OutOfMemoryError:
        return None
    per_step = spread([s / steps for s in seconds])
    on_gpu = torch.cuda.is_available()
    return {
        "seconds": per_step,
        **rates(config, per_step["median"], device_kind(), 1),
        "compile_seconds": trainer.compile_seconds,
        "device_peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "host_peak_bytes": host_peak(),
    }


def _log(variant: str, rows: int, measured: dict | None) -> None:
    result = "out of memory"
    if measured:
        result = f"{measured['tokens_per_second']:,.0f} tokens/s"
    print(f"{variant}, {rows} sequences at a time: {result}", file=sys.stderr)


def _require_divisors(batch_sizes: list[int], batch_size: int) -> None:
    for rows in batch_sizes:
        if batch_size % rows:
            raise UserError(
                f"--batch_sizes: expected divisors of config.training.batch_size "
                f"({batch_size}), got {rows}"
            )


def _adamw(config: Config, model: torch.nn.Module, fused: bool) -> torch.optim.AdamW:
    c = config.optimizer
    return torch.optim.AdamW(
        model.parameters(),
        lr=c.learning_rate,
        betas=(c.b1, c.b2),
        eps=c.eps,
        weight_decay=c.weight_decay,
        fused=fused,
    )


def _random_batches(config: Config, rows: int) -> list[tuple[torch.Tensor, ...]]:
    """Return the inputs and targets [B, L] of all micro-batches."""
    c = config.model
    shape = (config.training.batch_size // rows, rows, c.max_len + 1)
    return [
        (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        for tokens in torch.randint(c.vocab_size, shape)
    ]
