"""What a compiled program does: the collectives, and the calls of our kernels with the shapes of their operands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from jaxgemm._native import PEER_SUM_TARGET
from tests.test_sharding import COLLECTIVES

Shape: TypeAlias = tuple[int, ...]

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%?([A-Za-z_][\w.-]*)\s*(?:,|$)")


class Array(NamedTuple):
    """A dtype as XLA writes it, and a shape without dimensions of 1."""

    dtype: str
    shape: Shape


class Call(NamedTuple):
    """A call of one of our kernels."""

    target: str
    operands: list[Array]
    out: Array


def _arrays(text: str) -> list[Array]:
    return [
        Array(dtype, tuple(int(d) for d in sizes.split(",") if d and d != "1")) for dtype, sizes in _SHAPE.findall(text)
    ]


def _target(op: str, rest: str) -> str | None:
    """Of ours, if an instruction calls one."""
    found = re.search(r'custom_call_target="(jaxgemm_\w+)"', rest)
    return found[1] if found and op == "custom-call" else None


class Program:
    """Of compiled HLO."""

    def __init__(self, text: str) -> None:
        found = [m for line in text.splitlines() if (m := _INSTRUCTION.match(line))]
        self.text = text
        self.results = {m[1]: _arrays(m[2]) for m in found}
        self.instructions = [(m[3], m[1], m[4]) for m in found]

    def collectives(self) -> dict[str, list[int]]:
        """Sizes of the arrays that result from the collectives of each kind; several may be combined in one.

        Of those that have a beginning and an end, the end has the results, the beginning the operands, too. Sums by our
        own kernel are one kind.
        """
        found: dict[str, list[int]] = {}
        for op, name, rest in self.instructions:
            kind = PEER_SUM_TARGET if _target(op, rest) == PEER_SUM_TARGET else op.removesuffix("-done")
            if kind in (*COLLECTIVES, PEER_SUM_TARGET):
                found.setdefault(kind, []).extend(math.prod(array.shape) for array in self.results[name])
        return found

    def calls(self) -> list[Call]:
        """Those of our kernels that multiply."""
        found = []
        for op, name, rest in self.instructions:
            target = _target(op, rest)
            if target in (None, PEER_SUM_TARGET):
                continue
            names = _OPERAND.findall(re.sub(r"\w+\[[\d,]*\](\{[^}]*\})? ", "", rest.split(")", 1)[0]))
            operands = [self.results[operand][0] for operand in names]
            found.append(Call(target, operands, self.results[name][0]))
        return found

    def overlapped(self) -> int:
        """Calls of our kernels that are between the beginning of some collective and its end."""
        found, open_ones = 0, 0
        for op, _, rest in self.instructions:
            if op.removesuffix("-start") in COLLECTIVES and op.endswith("-start"):
                open_ones += 1
            elif op.removesuffix("-done") in COLLECTIVES and op.endswith("-done"):
                open_ones -= 1
            elif open_ones and 'custom_call_target="jaxgemm_' in rest:
                found += 1
        return found

    def takes_tiles(self) -> bool:
        """Whether there is a call whose CTAs take tiles while others are busy elsewhere (KSplit in cuda/gemm.h)."""
        return re.search(r"split = dense<\[[1-9]\d*, 1\]>", self.text) is not None


def compiled(function: Callable[..., Any], *operands: Any) -> tuple[Callable[..., Any], Program]:
    """The function compiled for these operands, and its program."""
    executable = jax.jit(function).lower(*operands).compile()
    text = executable.as_text()
    assert text, "no text of the compiled program"
    return executable, Program(text)
