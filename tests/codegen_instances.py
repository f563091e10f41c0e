"""What is said of a kernel's machine code: which instantiation it is, and how many instructions it should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WARP = 32


@dataclass(frozen=True)
class AtLeast:
    """For what ptxas may copy, or the source leaves to the compiler; an int says exactly how many."""

    number: int

    def __str__(self) -> str:
        return f"at least {self.number}"


Count = int | AtLeast


@dataclass(frozen=True)
class Instance:
    """One instantiation of a kernel's template. `arguments` are those behind the Config."""

    info: Any  # _core.KernelInfo
    arguments: tuple[str, ...]

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Of lhs and rhs: by custom the last two arguments."""
        lhs, rhs = self.arguments[-2:]
        return lhs == "true", rhs == "true"

    @property
    def warps_k(self) -> int:
        """How many warps share a warp tile."""
        (m, n, _), (warp_m, warp_n, _) = self.info.cta_tile, self.info.warp_tile
        return share(self.info.threads, WARP * share(m, warp_m) * share(n, warp_n))


@dataclass(frozen=True)
class Expectation:
    """Counts by pattern: an opcode's name, perhaps with wildcards, and modifiers that it must have (sass.matches)."""

    main_loop: tuple[str, ...]
    """The main loops are the innermost ones that hold all of these."""
    k_tile: Mapping[str, Count]
    """What they hold for each k-tile. The first is an exact number, from which the number of k-tiles follows."""
    kernel: Mapping[str, Count] = field(default_factory=dict)
    """What the whole kernel holds."""
    only_in_main_loops: tuple[str, ...] = ()


def share(total: int, parts: int) -> int:
    if total % parts:
        raise ValueError(f"{total} is not a multiple of {parts}")
    return total // parts
