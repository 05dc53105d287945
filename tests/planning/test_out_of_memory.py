"""What is said where memory ends: the table, and changes that do what they say."""

import dataclasses
import re

import cases
import jax
import pytest
from cases import WIDE, mesh_of

from diffeq_former.config import Config, TrainingConfig, default_config, resolve
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.errors import UserError
from diffeq_former.hardware import CPU
from diffeq_former.planning.closed_form import needed_memory, state_bytes
from diffeq_former.planning.memory import least_memory
from diffeq_former.planning.out_of_memory import advice, check_memory

LENGTH = 1024
CONFIG = Config(
    model=dataclasses.replace(
        WIDE, d_model=512, vocab_size=8192, max_len=LENGTH, remat="none"
    ),
    training=TrainingConfig(batch_size=64, loss_chunk=512),
)
LINE = re.compile(r"  +([\d.]+) GB  (.+)")


def total(config, mesh):
    sizes = dict(mesh.shape)
    return needed_memory(config, sizes, CPU, LENGTH).total / 1e9


def parts_and_changes(config, mesh):
    title = "Changes that save most memory, each on its own:"
    table, changes = advice(config, mesh, LENGTH).split(title)
    parts, changes = (
        [(float(size), what) for size, what in LINE.findall(text)]
        for text in (table, changes)
    )
    return parts, changes


def with_flags(config, flags):
    """As the command line would: by names in the defaults' ConfigDict."""
    values = default_config()
    values.update(dataclasses.asdict(config))
    for name, value in re.findall(r"--config\.([\w.]+)=(\w+)", flags):
        section, field = name.split(".")
        kind = type(values[section][field])
        values[section][field] = value == "True" if kind is bool else kind(value)
    return resolve(values)


@pytest.mark.parametrize("num_devices", [1, pytest.param(8, marks=pytest.mark.mesh)])
@pytest.mark.parametrize("rows", [8, 64])
def test_the_parts_are_the_whole_and_the_changes_save_what_they_say(rows, num_devices):
    config = dataclasses.replace(
        CONFIG, training=dataclasses.replace(CONFIG.training, batch_size=rows)
    )
    mesh = mesh_of(num_devices)
    parts, changes = parts_and_changes(config, mesh)
    *sizes, (whole, what) = parts
    assert (what, whole) == ("total", pytest.approx(total(config, mesh), abs=6e-4))
    sizes = [size for size, _ in sizes]
    assert whole * 0.95 < sum(sizes) <= whole + 0.005
    assert sizes == sorted(sizes, reverse=True)
    assert len(changes) == 3 and changes == sorted(changes, reverse=True)
    for saved, flags in changes:
        changed = with_flags(config, flags)
        other = make_mesh(changed.mesh, jax.devices()[:num_devices])
        now = total(config, mesh) - total(changed, other)
        assert saved == pytest.approx(now, abs=6e-4), flags


def first_change(num_devices, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    _, [(_, first), *_] = parts_and_changes(config, mesh_of(num_devices))
    return first


def test_what_helps_depends_on_what_is_large():
    """With many rows, fewer at once."""
    full = dataclasses.replace(CONFIG.model, remat="full")
    assert first_change(1) == "--config.model.remat=full"
    fewer = "--config.training.per_device_batch_size=32"
    chunks = dataclasses.replace(CONFIG.training, loss_chunk=64)
    assert first_change(1, model=full, training=chunks) == fewer


@pytest.mark.mesh
def test_a_large_state_on_several_devices_is_to_be_sharded():
    few = dataclasses.replace(CONFIG.training, batch_size=8)
    assert first_change(8, training=few) == "--config.mesh.data=1 --config.mesh.fsdp=8"


def test_only_what_is_allowed_is_advised():
    """One row, layers without a bank, a mean of squares that needs float32."""
    config = dataclasses.replace(
        CONFIG,
        model=dataclasses.replace(CONFIG.model, weights="layer_table", remat="full"),
        optimizer=dataclasses.replace(CONFIG.optimizer, b2=0.999, mu_dtype="bfloat16"),
        training=TrainingConfig(batch_size=1, loss_chunk=1),
    )
    assert "save most memory" not in advice(config, mesh_of(), LENGTH)


@pytest.mark.parametrize(
    "flags, largest",
    [
        ("--config.model.vocab_size=2000000000", "optimizer"),
        ("--config.model.d_ff=2000000000", "optimizer"),
        ("--config.model.time_embed_dim=100000000", "optimizer"),
        ("--config.model.num_layers=10000", "saved states"),
        ("--config.training.batch_size=100000000", "saved states"),
    ],
)
def test_sizes_that_no_machine_holds_are_refused(flags, largest):
    config = with_flags(CONFIG, flags)
    with pytest.raises(
        UserError, match=f"needs at least .* the {largest} .*: (use|low)"
    ):
        check_memory(config, mesh_of(), LENGTH)


@pytest.mark.parametrize("model", cases.covering(), ids=cases.name)
def test_what_is_refused_would_not_fit(model):
    """The least memory of any step is at most the plan's."""
    config = Config(model=model, training=TrainingConfig(batch_size=8))
    sizes = dict(mesh_of().shape)
    held = state_bytes(config, sizes)
    needed = needed_memory(config, sizes, CPU, config.model.max_len)
    least = least_memory(config, sizes, held, config.model.max_len)
    assert 0 < sum(least.values()) <= needed.total
