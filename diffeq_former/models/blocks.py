"""Registry of blocks by name."""

from diffeq_former.models.block import Block
from diffeq_former.models.gpt import GPT
from diffeq_former.models.llama import LLAMA

BLOCKS: dict[str, Block] = {"gpt": GPT, "llama": LLAMA}
