"""The types of the config: members of the registries, and tuples."""

import sys
import typing

import pytest
from absl import flags
from ml_collections import config_flags

from diffeq_former.config import ModelConfig, default_config, resolve
from diffeq_former.models.attention_kernels import KERNELS
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.linear import RECIPES
from diffeq_former.models.positions import ROPE_SCALINGS
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.solvers import SOLVERS


def test_members_are_those_of_the_registries():
    """The schema stands below the models and names their parts."""
    registries = {
        "block": BLOCKS,
        "weights": SOURCES,
        "solver": SOLVERS,
        "remat": POLICIES,
        "rope_scaling": ROPE_SCALINGS,
        "attention_implementation": {"auto", *KERNELS},
        "matmul_precision": set(RECIPES),
    }
    hints = typing.get_type_hints(ModelConfig)
    for field, registry in registries.items():
        assert set(typing.get_args(hints[field])) == set(registry), field


@pytest.mark.parametrize(
    "flag, field, expected",
    [
        ("training.depth_steps=4,6,8", "depth_steps", (4, 6, 8)),
        ("training.depth_steps=8", "depth_steps", (8,)),
        ("training.depth_steps=()", "depth_steps", ()),
        ("model.lora_targets=('qkv','ff_in')", "lora_targets", ("qkv", "ff_in")),
    ],
)
def test_tuples_on_the_command_line(flag, field, expected, monkeypatch):
    values = default_config()
    values.finetune.base, values.model.lora_rank = "runs/base", 2
    found, argv = flags.FlagValues(), ["train", f"--config.{flag}"]
    monkeypatch.setattr(sys, "argv", argv)  # which config_flags reads, too
    config_flags.DEFINE_config_dict("config", values, flag_values=found)
    found(argv)
    section = flag.partition(".")[0]
    assert getattr(getattr(resolve(found.config), section), field) == expected
