"""The emulator's library, as Python sees it."""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator.build import build

ENGINES = ("cp_async", "tma", "wgmma", "bulk_store")
LATENCIES = ("prompt", "random", "slow")


class _Operand(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("rows", ctypes.c_int64), ("cols", ctypes.c_int64),
        ("ld", ctypes.c_int64), ("batch_stride", ctypes.c_int64), ("transposed", ctypes.c_int32),
        ("misalignment", ctypes.c_int32),
    ]  # fmt: skip


class _Schedule(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64), ("workers", ctypes.c_int32), ("conflicts", ctypes.c_int32),
        ("latency", ctypes.c_int32 * len(ENGINES)), ("multiprocessors", ctypes.c_int32),
    ]  # fmt: skip


class _Request(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p), ("batch", ctypes.c_int64), ("m", ctypes.c_int64), ("n", ctypes.c_int64),
        ("k", ctypes.c_int64), ("lhs", _Operand), ("rhs", _Operand), ("out", _Operand),
        ("lhs_dtype", ctypes.c_char_p), ("rhs_dtype", ctypes.c_char_p), ("out_dtype", ctypes.c_char_p),
        ("precision", ctypes.c_char_p), ("activation", ctypes.c_char_p), ("alpha", ctypes.c_void_p),
        ("bias", ctypes.c_void_p), ("bias_dtype", ctypes.c_char_p), ("bias_batch_stride", ctypes.c_int64),
        ("whole", ctypes.c_int64),
        ("splits", ctypes.c_int64), ("bits", ctypes.c_int64), ("group_size", ctypes.c_int64),
        ("scales", ctypes.c_void_p), ("zeros", ctypes.c_void_p), ("parameters", ctypes.c_int64),
        ("scale_dtype", ctypes.c_char_p), ("zeros_kind", ctypes.c_char_p), ("schedule", _Schedule),
        ("owners", ctypes.c_void_p),
    ]  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """How the threads, CTAs and asynchronous units of one run are interleaved.

    Attributes:
      seed: of the order in which fibers and CTAs run, and of the latencies unless they are given.
      workers: OS threads that execute CTAs.
      conflicts: whether bank conflicts of plain loads and stores are counted; ldmatrix' always are.
      latency: by name of :data:`ENGINES`, one of :data:`LATENCIES`. What is missing follows from the seed: over the
        seeds every engine is prompt, random and slow, in all combinations.
      multiprocessors: that the device says it has: so few that CTAs that stay have several tiles each, and not all as
        many.
    """

    seed: int = 0
    workers: int = 1
    conflicts: bool = False
    latency: dict[str, str] = field(default_factory=dict)
    multiprocessors: int = 3

    def native(self) -> _Schedule:
        drawn = [self.seed // 3**i % 3 for i in range(len(ENGINES))]
        # Seeds count through the combinations, slow ones first: those find most.
        chosen = [
            LATENCIES.index(self.latency[name]) if name in self.latency else 2 - drawn[i]
            for i, name in enumerate(ENGINES)
        ]
        latency = (ctypes.c_int32 * len(ENGINES))(*chosen)
        return _Schedule(self.seed, self.workers, self.conflicts, latency, self.multiprocessors)


@dataclass(frozen=True)
class KernelInfo:
    """One row of the registry, or of the reference kernels."""

    name: str
    family: str
    cta_tile: tuple[int, int, int]
    warp_tile: tuple[int, int, int]
    stages: int
    threads: int
    split_k: bool
    stream_k: bool
    cluster_ctas: int
    min_sm: int
    tf32: bool
    highest: bool
    bits: int
    group_multiple: int
    dtypes: tuple[tuple[str, str, str], ...]
    layouts: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """What the emulator found, ``count`` times, at ``where`` (and, of a race, after the access at ``other``)."""

    kind: str
    text: str
    count: int
    where: str
    other: str

    def __str__(self) -> str:
        places = "".join(
            f"\n    {label} {place}" for label, place in (("at", self.where), ("after", self.other)) if place
        )
        return f"{self.kind} (x{self.count}): {self.text}{places}"


@dataclass(frozen=True)
class Wavefronts:
    """Bank conflicts of one place in the code: ``wavefronts`` where ``ideal`` would have done without conflicts."""

    where: str
    what: str
    accesses: int
    wavefronts: int
    ideal: int


@dataclass(frozen=True)
class Operand:
    """An operand as it lies in memory: a flat array and how it is read.

    Element (b, i, j) is at ``b * batch_stride + i * ld + j``, or ``+ j * ld + i`` if transposed, in elements.
    """

    data: np.ndarray
    rows: int
    cols: int
    ld: int
    batch_stride: int = 0
    transposed: bool = False
    misalignment_bytes: int = 0

    def native(self) -> _Operand:
        assert self.data.flags.c_contiguous
        return _Operand(
            self.data.ctypes.data, self.data.nbytes, self.rows, self.cols, self.ld, self.batch_stride,
            self.transposed, self.misalignment_bytes,
        )  # fmt: skip


@dataclass(frozen=True)
class Codes:
    """How codes of quantised weights become numbers; arrays as in ``jaxgemm.QuantizedMatrix``."""

    bits: int
    group_size: int
    scales: np.ndarray
    zeros: np.ndarray | None = None

    def native(self) -> tuple[Any, ...]:
        assert self.scales.flags.c_contiguous and (self.zeros is None or self.zeros.flags.c_contiguous)
        kind = "middle" if self.zeros is None else "integer" if self.zeros.dtype == np.uint8 else "float"
        return (
            self.bits, self.group_size, self.scales.ctypes.data, None if self.zeros is None else self.zeros.ctypes.data,
            self.scales.size, self.scales.dtype.name.encode(), kind.encode(),
        )  # fmt: skip


_NO_CODES = Codes(0, 1, np.empty(0, np.float32))


@dataclass(frozen=True)
class Run:
    """What one run of a kernel gave."""

    refused: str
    error: str
    findings: tuple[Finding, ...]
    wavefronts: tuple[Wavefronts, ...]
    owners: np.ndarray
    switches: int
    launches: int
    stopped: bool
    """Whether a finding ended it: the result is not complete."""

    @property
    def clean(self) -> bool:
        """Whether the kernel ran and nothing was found; its values are another matter."""
        return not (self.refused or self.error or self.findings)

    @property
    def declined(self) -> str:
        """Why the kernel did not even start: this problem is none that it takes; "" if it did."""
        return self.refused or (self.error if self.launches == 0 else "")

    def __str__(self) -> str:
        return "\n".join(
            [f"refused: {self.refused}"] * bool(self.refused)
            + [f"error: {self.error}"] * bool(self.error)
            + [str(finding) for finding in self.findings]
        )


class Emulator:
    """One build of the emulator. Its methods may be called from several threads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name in ("emu_kernels", "emu_run", "emu_probes", "emu_run_probe", "emu_why_not"):
            getattr(self._library, name).restype = ctypes.c_char_p

    @functools.cached_property
    def kernels(self) -> dict[str, KernelInfo]:
        """Those of dense operands, by full name, in ladder order, the reference kernels last."""
        return {name: info for name, info in self._all_kernels.items() if info.bits == 0}

    @functools.cached_property
    def mixed_kernels(self) -> dict[str, KernelInfo]:
        """Those of quantised weights, by full name."""
        return {name: info for name, info in self._all_kernels.items() if info.bits != 0}

    @functools.cached_property
    def _all_kernels(self) -> dict[str, KernelInfo]:
        rows = self._answer(self._library.emu_kernels())
        return {
            row["name"]: KernelInfo(
                **(row | {"dtypes": tuple(map(tuple, row["dtypes"])), "layouts": tuple(row["layouts"])}
                   | {tile: tuple(row[tile]) for tile in ("cta_tile", "warp_tile")})
            )
            for row in rows
        }  # fmt: skip

    @functools.cached_property
    def probes(self) -> dict[str, tuple[int, int]]:
        """Words that each probe reads and writes."""
        return {row["name"]: (row["in_words"], row["out_words"]) for row in self._answer(self._library.emu_probes())}

    def run(
        self, kernel: str, lhs: Operand, rhs: Operand, out: Operand, batch: int = 1, *, alpha: float | None = None,
        bias: np.ndarray | None = None, precision: str = "default", activation: str = "none",
        split: tuple[int, int] | None = None, codes: Codes | None = None, schedule: Schedule = Schedule(),
    ) -> Run:  # fmt: skip
        """Runs ``kernel`` on operands whose dtypes are those of their arrays; ``out.data`` is overwritten.

        Args:
          bias: (N), or (batch, N).
          split: how many tiles of out are one CTA's each, and how many CTAs share K of every other one; by default as
            the chooser says.
          codes: of quantised weights, whose packed codes are ``rhs.data``.
        """
        bias_dtype = np.dtype(np.float32) if bias is None else bias.dtype
        factor = None if alpha is None else np.array([alpha], np.float32)
        owners = np.full(out.data.size, -1, np.int64)
        request = _Request(
            kernel.encode(), batch, out.rows, out.cols, lhs.cols, lhs.native(), rhs.native(), out.native(),
            *(x.dtype.name.encode() for x in (lhs.data, rhs.data if codes is None else lhs.data, out.data)),
            precision.encode(), activation.encode(),
            *(None if x is None else x.ctypes.data for x in (factor, bias)), bias_dtype.name.encode(),
            0 if bias is None or bias.ndim == 1 else bias.shape[-1],
            *(split or (0, 0)), *(codes or _NO_CODES).native(), schedule.native(), owners.ctypes.data,
        )  # fmt: skip
        return self._to_run(self._answer(self._library.emu_run(ctypes.byref(request))), owners)

    def run_probe(self, name: str, words: np.ndarray, schedule: Schedule = Schedule()) -> tuple[np.ndarray, Run]:
        """What the probe writes when it reads ``words`` (uint32)."""
        in_words, out_words = self.probes[name]
        assert words.dtype == np.uint32 and words.size == in_words and words.flags.c_contiguous
        out = np.full(out_words, 0xFFFFFFFF, np.uint32)
        answer = self._library.emu_run_probe(
            name.encode(), ctypes.c_void_p(words.ctypes.data), ctypes.c_void_p(out.ctypes.data),
            ctypes.byref(schedule.native()),
        )  # fmt: skip
        return out, self._to_run(self._answer(answer), np.empty(0, np.int64))

    def why_not(self, smem_bytes: int, sm: int) -> str:
        """The registry's sentence about a kernel that needs so much shared memory, on a GPU of ``sm``."""
        return self._answer(self._library.emu_why_not(smem_bytes, sm))["why_not"]

    def speed(self) -> dict[str, float]:
        """Nanoseconds of a context switch, of ucontext's, and emulated mma instructions per second."""
        self._library.emu_speed.restype = ctypes.c_char_p
        return self._answer(self._library.emu_speed())

    def fragments(self, elems: int) -> dict[str, np.ndarray]:
        """cuda/tile/fragment.cuh for ``elems`` elements to a register.

        Returns:
          By operand ("a", "b", "d") an array [lane, element, 2] of rows and columns.
        """
        self._library.emu_fragments.restype = ctypes.c_char_p
        return {name: np.array(rows) for name, rows in self._answer(self._library.emu_fragments(elems)).items()}

    @staticmethod
    def _answer(text: bytes) -> Any:
        answer = json.loads(text)
        if "exception" in answer:
            raise ValueError(answer["exception"])
        return answer

    def _to_run(self, answer: dict[str, Any], owners: np.ndarray) -> Run:
        if "refused" in answer:
            return Run(answer["refused"], "", (), (), owners, 0, 0, False)
        places = self.places({at for row in answer["findings"] for at in row["where"]})
        findings = []
        for row in answer["findings"]:
            where, other = (places[at] for at in row["where"])
            # The compiler may have made two copies of one line: lanes in both execute one instruction (machine.cc).
            if row["kind"] == "divergence" and where == other and "in different places" in row["text"]:
                continue
            findings.append(Finding(row["kind"], row["text"], row["count"], where, other))
        if guards := answer["damaged_guards"]:
            findings.append(Finding("out of bounds", f"the memory around {guards} was overwritten", 1, "", ""))
        wavefronts = tuple(
            Wavefronts(str(row["where"]), row["what"], row["accesses"], row["wavefronts"], row["ideal"])
            for row in answer["wavefronts"]
        )
        return Run(
            "", answer["error"], tuple(findings), wavefronts, owners, answer["switches"], answer["launches"],
            answer.get("stopped", False),
        )  # fmt: skip

    def places(self, offsets: set[int]) -> dict[int, str]:
        """Code offsets as "file:line in function", the callers of inlined functions after it."""
        result = {at: "" if at == 0 else f"+{at:#x}" for at in offsets}
        wanted = sorted(at for at in offsets if at)
        tool = shutil.which("addr2line")
        if not wanted or tool is None:
            return result
        # An offset is where a call returns to: one byte before lies in the call.
        command = [tool, "-e", str(self.path), "-a", "-i", *(hex(at - 1) for at in wanted)]
        lines = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout.splitlines()
        frames: dict[int, list[str]] = {}
        for line in lines:
            if line.startswith("0x"):
                frames[int(line, 16) + 1] = current = []
            else:
                current.append(_short(line))
        for at, chain in frames.items():
            seen = [frame for frame in dict.fromkeys(chain) if frame]
            if at in result and seen:
                result[at] = " < ".join(seen)
        return result


def _short(frame: str) -> str:
    """addr2line's place below cuda/ or tests/emulator/; what is neither, or belongs to the emulator, is left out."""
    path = frame.split(" (discriminator")[0]
    for folder in ("cuda/kernels/", "cuda/tile/", "cuda/epilogue/", "cuda/mainloop/", "emulator/reference/",
                   "emulator/probes/"):  # fmt: skip
        if folder in path:
            return folder.removeprefix("emulator/") + path.rpartition(folder)[2]
    return ""


@functools.cache
def emulator() -> Emulator:
    """The emulator of this tree, built if it must be."""
    return Emulator(build())
