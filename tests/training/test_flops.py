import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest
from cases import allowed, name, params_of

from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.jaxpr_flops import dot_flops
from diffeq_former.training import flops


@pytest.mark.parametrize("config", allowed(), ids=name)
def test_a_third_is_what_the_forward_pass_multiplies(config):
    """Backward has two products for each of forward; the table is given."""
    # Other kernels leave out what is masked.
    config = dataclasses.replace(config, attention_implementation="xla")
    model, params = Transformer(config), params_of(config)
    bound = {"params": params}
    table = jax.eval_shape(lambda: model.apply(bound, method="tabulate"))
    tokens = jnp.zeros((2, config.max_len), jnp.int32)

    def forward(table):
        return model.apply(bound, tokens, table=table)

    counted = sum(dot_flops(forward, table))
    assert flops.flops_per_token(config, config.max_len) * tokens.size == 3 * counted


def device(kind: str):
    return types.SimpleNamespace(device_kind=kind)


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H100 PCIe", None),  # slower than the SXM module
        ("cpu", None),
    ],
)
def test_peaks(kind, peak):
    assert flops.peak_flops(kind) == peak


def test_the_description_has_the_formula_and_the_peak():
    config = allowed()[0]
    line = flops.describe(config, 8, [device("NVIDIA H200")] * 2)
    assert "6 N + 12 A D L" in line and "2 x 989 Tflop/s (NVIDIA H200)" in line
    line = flops.describe(config, 8, jax.devices())
    assert "MFU not reported: the peak of cpu is not known" in line
