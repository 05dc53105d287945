"""The mesh on which a tool loads a run: the run's own, unless changed by flags.

The flags are those of training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import dataclasses
from pathlib import Path

from absl import flags

from diffeq_former.config import Config, MeshConfig, resolve

_SIZES = {
    axis.name: flags.DEFINE_integer(
        f"config.mesh.{axis.name}",
        None,
        "Size of this mesh axis; default: as in the run.",
    )
    for axis in dataclasses.fields(MeshConfig)
}


def load_run(workdir: str | Path, **options):
    """Load the latest checkpoint of a run, a `diffeq_former.Run`.

    Args:
      workdir: The run's folder.
      **options: Options of `diffeq_former.load`, but for the mesh.

    Raises:
      UserError: See `diffeq_former.load`.
    """
    from diffeq_former import api
    from diffeq_former.training import run_directory

    config = run_directory.read_config(Path(workdir))
    return api.load(workdir, mesh=make_mesh(config), **options)


def make_mesh(config: Config):
    """Make the mesh on which a tool loads the run with this config.

    Raises:
      UserError: If the sizes are invalid, or do not suit the devices.
    """
    from diffeq_former.distributed import mesh

    return mesh.make_mesh(mesh_from_flags(config))


def mesh_from_flags(config: Config) -> MeshConfig:
    """Return the run's mesh config with the sizes that flags set replaced.

    Raises:
      UserError: If the sizes are invalid.
    """
    given = {axis: x.value for axis, x in _SIZES.items() if x.value is not None}
    mesh = dataclasses.replace(config.mesh, **given)
    return resolve(dataclasses.asdict(dataclasses.replace(config, mesh=mesh))).mesh
