"""A defect to plant into the kernels' sources (mutations.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.emulator.build import CUDA, only_kernels

_LAUNCH = Path("launch.cuh")
_OTHER_LAYOUTS = re.compile(r"(case Layout::k(?:NT|TN):).*")
LAYOUTS = ("NN", "TT")
"""Of a mutant: each operand in either order."""


@dataclass(frozen=True)
class Mutation:
    """``old``, which the file contains once (or its ``occurrence``-th), becomes ``new``, and the family breaks."""

    family: str
    what: str
    old: str
    new: str
    occurrence: int | None = None
    file: str = ""
    """Below cuda/; by default the family's kernels."""
    tile: str = ""
    """Of the one kernel of the family that is compiled and tried; by default it is the first."""
    conflicts: bool = False
    """Whether nothing is wrong but the number of bank conflicts."""

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", f"{self.family} {self.what}")

    @property
    def path(self) -> Path:
        return Path(self.file or f"kernels/{self.family}.cu")

    def texts(self) -> dict[Path, str]:
        """The files, below cuda/, that differ: what is broken, and, to be quick to compile, without all but one of the
        family's kernels and without the other layouts.
        """
        original = (CUDA / self.path).read_text()
        places = [match.start() for match in re.finditer(re.escape(self.old), original)]
        if self.occurrence is None:
            assert len(places) == 1, f"{self.path} has {self.old!r} {len(places)} times"
        at = places[self.occurrence or 0]
        broken = {self.path: original[:at] + self.new + original[at + len(self.old) :]}
        kernels = Path(f"kernels/{self.family}.cu")
        text = broken.get(kernels) or (CUDA / kernels).read_text()
        smaller = {
            kernels: only_kernels(text, self._kept),
            _LAUNCH: _OTHER_LAYOUTS.sub(r"\1", (CUDA / _LAUNCH).read_text()),
        }
        return broken | smaller

    def _kept(self, rows: list[str]) -> list[str]:
        return [row for row in rows if f"<Config{self.tile}" in row][:1]
