"""With adapters only these are trained; all else keeps its bits and has no moments."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from accumulation import micro_batches, of_tree
from cases import EVERY_MESH, TINY, in_two_lots, mesh_of, params_of

from diffeq_former.config import (
    Config,
    FinetuneConfig,
    OptimizerConfig,
    TrainingConfig,
)
from diffeq_former.distributed.mesh import layout, shard_batch
from diffeq_former.finetuning.merge import merged_params
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.jaxpr_flops import dot_flops
from diffeq_former.training import state
from diffeq_former.training.parts import merge, partition
from diffeq_former.training.step import make_train_step

ROWS = 8
LORA = {"lora_rank": 2, "lora_alpha": 3.0}


def config_of(train_embeddings=False, at_once=0, **model) -> Config:
    plain = dataclasses.replace(TINY, weights="layer_table", solver="lie_trotter")
    return Config(
        model=dataclasses.replace(plain, **(LORA | model)),
        # A large eps: else Adam's first step would be the sign of rounding errors.
        optimizer=OptimizerConfig(
            warmup_fraction=0.0, learning_rate=0.1, eps=1e-2, clip_norm=0.0
        ),
        training=TrainingConfig(
            batch_size=ROWS, per_device_batch_size=at_once, loss_chunk=4
        ),
        finetune=FinetuneConfig(base="base", train_embeddings=train_embeddings),
    )


def batch_of(rows: int = ROWS) -> dict:
    random = np.random.default_rng(0)
    tokens = random.integers(0, TINY.vocab_size, (rows, TINY.max_len + 1), np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def steps_on(mesh, config: Config, count: int = 1):
    """The state and the metrics after some steps."""
    params = jax.device_put(
        params_of(config.model), state.shardings(config, mesh).params
    )
    now, step = state.with_params(config, mesh, params), make_train_step(config, mesh)
    for _ in range(count):
        now, metrics = step(now, shard_batch(batch_of(), mesh))
    return jax.tree.map(np.asarray, (now, metrics))


def is_changed(path, embeddings: bool) -> bool:
    first, last = path[0].key, path[-1].key
    return last in ("lora_a", "lora_b") or (embeddings and first != "weights")


@pytest.mark.parametrize("embeddings", in_two_lots([False, True], True.__eq__))
def test_only_what_is_trained_changes(embeddings):
    block = "llama" if embeddings else "gpt"
    config = config_of(embeddings, at_once=2, block=block, lora_dropout=0.1)
    after, metrics = steps_on(mesh_of(), config, 3)
    trained = 0
    before = params_of(config.model)
    for (path, old), new in zip(
        jax.tree.leaves_with_path(before), jax.tree.leaves(after.params), strict=True
    ):
        assert (new != old).any() == is_changed(path, embeddings), path
        trained += old.size * is_changed(path, embeddings)
    moments = jax.tree.leaves(after.opt_state)
    assert sum(x.size for x in moments if x.ndim) == 2 * trained
    groups = {name for name in metrics if name.startswith("grad_norm/")}
    both_ends = {f"grad_norm/{name}" for name in ("embedding", "head", "norm")}
    assert groups == {"grad_norm/lora"} | (both_ends if embeddings else set())


def plain_loss(config: Config, params: dict, batch: dict):
    logits = Transformer(config.model).apply({"params": params}, batch["inputs"])
    one_hot = jax.nn.one_hot(batch["targets"], logits.shape[-1])
    return -(jax.nn.log_softmax(logits) * one_hot).sum(-1).mean()


def gradients_of(config: Config, params: dict, M: int) -> dict:
    batch = micro_batches(batch_of(), M)
    return of_tree(config, params, batch, jax.random.key(0))[1].merge()


GRADIENTS = [("gpt", 1), ("llama", 2)]


@pytest.mark.parametrize("case", in_two_lots(GRADIENTS, ("llama", 2).__eq__))
def test_gradients_are_those_of_the_merged_table(case):
    block, M = case
    config = config_of(block=block, train_embeddings=block == "gpt")
    merged = dataclasses.replace(config, model=config.model.without_adapters())
    params = params_of(config.model)
    parts = partition(config, params)

    def loss(trained):
        whole = merged_params(config.model, merge(trained, parts.frozen))
        return plain_loss(merged, whole, batch_of())

    expected = jax.jit(jax.grad(loss))(parts.rest)
    found = jax.jit(lambda params: gradients_of(config, params, M))(params)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale)


def test_no_product_makes_a_gradient_of_what_is_frozen():
    """Of the three products of a map with its kernel one falls away."""
    wide = {"d_model": 64, "num_heads": 4, "d_ff": 256, "lora_rank": 1}
    config = config_of(**wide)
    full = dataclasses.replace(config, model=config.model.without_adapters())

    def flops(config):
        params = params_of(config.model)
        return sum(dot_flops(lambda p: gradients_of(config, p, 1), params))

    assert flops(config) < 0.75 * flops(full)


def test_what_is_frozen_is_not_copied():
    config, mesh = config_of(d_ff=200), mesh_of()
    step = make_train_step(config, mesh).__wrapped__
    with layout(mesh):
        lowered = step.lower(state.abstract(config, mesh), batch_of())
    text = lowered.compile().as_text()
    kernel = "f32[3,16,200]"
    assert kernel in text
    assert not re.findall(rf"= {re.escape(kernel)}\S* copy\(", text)


MESHES = ["data-fsdp-tensor", "fsdp-sequence-tensor"]


@pytest.mark.mesh
@pytest.mark.parametrize("mesh", in_two_lots(MESHES, MESHES[0].__eq__))
def test_a_step_on_a_mesh_equals_that_of_one_device(mesh):
    at_once = 1 if mesh == "data-fsdp-tensor" else 0
    axes = EVERY_MESH[mesh]
    found, metrics = steps_on(mesh_of(8, **axes), config_of(at_once=at_once))
    expected, of_one = steps_on(mesh_of(), config_of())
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        atol = 1e-5 * max(np.abs(b).max(), 1e-3)
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))
    for name, value in of_one.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
