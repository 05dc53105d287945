"""The mesh on which a tool uses a run: the run's own, unless flags say otherwise.

They are spelt as for training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import dataclasses

from absl import flags

from diffeq_former.config import Config, MeshConfig, resolve

_SIZES = {
    axis.name: flags.DEFINE_integer(
        f"config.mesh.{axis.name}", None, "Size of the mesh's axis; else the run's own."
    )
    for axis in dataclasses.fields(MeshConfig)
}


def mesh_from_flags(config: Config) -> MeshConfig:
    """The sizes that are given; the others are those of the run's config.

    Raises:
      UserError: for sizes that no mesh has.
    """
    given = {axis: x.value for axis, x in _SIZES.items() if x.value is not None}
    mesh = dataclasses.replace(config.mesh, **given)
    return resolve(dataclasses.asdict(dataclasses.replace(config, mesh=mesh))).mesh
