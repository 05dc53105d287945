"""Registry of blocks by name."""

from diffeq_former.config import ModelConfig
from diffeq_former.models.block import Block
from diffeq_former.models.gpt import GPT
from diffeq_former.models.llama import LLAMA
from diffeq_former.models.weight_specs import LinearSpec

BLOCKS: dict[str, Block] = {"gpt": GPT, "llama": LLAMA}


def linear_specs(c: ModelConfig) -> dict[str, LinearSpec]:
    """Return the specifications of the linear maps of a model's block, by name."""
    specs = BLOCKS[c.block].weight_specs(c)
    return {name: s for name, s in specs.items() if isinstance(s, LinearSpec)}
