"""The text of a compiled program: its instructions, and how often each is executed.

A program consists of computations, which consist of instructions. Some instructions
call computations: loops, conditionals, and fusions, which compute several instructions
at once.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.+?) ([\w\-]+)\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|called_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(
    r"(?:branch_computations=\{|true_computation=|false_computation=)([%\w.\-, ]+)"
)
_NAME = re.compile(r"%([\w.\-]+)")
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r" [su]32\[\]\S* constant\((\d+)\)")
_SCOPE = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, such as `%name = f32[2,3] add(%x, %y), metadata={...}`."""

    name: str
    shape: str  # of the result, such as f32[2,3]
    kind: str  # such as add
    text: str  # all of it

    @property
    def op_name(self) -> str:
        """The names of the scopes in which the program computes it, joined by "/"."""
        found = _SCOPE.search(self.text)
        return found[1] if found else ""


class Executed(NamedTuple):
    """An executed instruction."""

    instruction: Instruction
    times: int
    computation: str
    following: list[Instruction]  # in the same computation, in the order of execution


class Program:
    """A compiled program.

    Args:
      text: `jax.jit(f).lower(...).compile().as_text()`, for CPUs, GPUs or TPUs.
    """

    def __init__(self, text: str):
        self._computations: dict[str, list[Instruction]] = {}
        self._by_name: dict[str, Instruction] = {}
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                instructions = self._computations[start[2]] = []
                if start[1]:
                    self._entry = start[2]
            elif found := _INSTRUCTION.match(line):
                instruction = Instruction(*found.groups(), line)
                instructions.append(instruction)
                self._by_name[instruction.name] = instruction

    def executed(self) -> Iterator[Executed]:
        """Yield every instruction outside fusions.

        Of the branches of a conditional, the second is taken: in `jax.lax.cond`, where
        the condition is true; in a training step, the update that is not logged.

        Raises:
          ValueError: If the trip count of a loop is unknown.
        """
        return self._executed(self._entry, 1)

    def fused(self, instruction: Instruction) -> list[tuple[str, Instruction]]:
        """Return the instructions within a fusion, with the names of computations."""
        if instruction.kind != "fusion":
            return []
        return [
            pair
            for name in self._called(instruction)
            for inner in self._computations[name]
            for pair in [(name, inner), *self.fused(inner)]
        ]

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions whose results an instruction takes."""
        start = instruction.text.index(f" {instruction.kind}(")
        names = _NAME.findall(
            instruction.text[start : instruction.text.index(")", start)]
        )
        return [self._by_name[name] for name in names if name in self._by_name]

    def _executed(self, computation: str, times: int) -> Iterator[Executed]:
        instructions = self._computations[computation]
        for k, instruction in enumerate(instructions):
            yield Executed(instruction, times, computation, instructions[k + 1 :])
            if instruction.kind in ("while", "call", "conditional", "async-start"):
                repeated = 1
                if instruction.kind == "while":
                    repeated = self._trip_count(instruction)
                for name in self._called(instruction):
                    yield from self._executed(name, times * repeated)

    def _called(self, instruction: Instruction) -> list[str]:
        if branches := _BRANCHES.findall(instruction.text):
            names = _NAME.findall(branches[0])
            return names[1:2] or names
        return _CALLED.findall(instruction.text)

    def _trip_count(self, loop: Instruction) -> int:
        """Return how often a loop is executed, at most.

        Compilers for CPUs and GPUs state it. A TPU's loop compares a counter, which
        starts at 0, with a constant.
        """
        if stated := _TRIPS.search(loop.text):
            return int(stated[1])
        name = _CONDITION.search(loop.text)[1]
        condition = self._computations[name]
        condition = condition + [y for x in condition for _, y in self.fused(x)]
        found = {m[1] for x in condition if (m := _CONSTANT.search(x.text))} - {"0"}
        if len(found) != 1:
            raise ValueError(f"unknown trip count of a loop: {loop.text.strip()[:200]}")
        return int(found.pop())
