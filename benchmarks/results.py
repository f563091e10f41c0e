"""The result file: its schema, its header, resuming, and atomic writes."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

from benchmarks.shapes import AnyProblem, MixedProblem, Problem
from benchmarks.trees import REPOSITORY, evidence_trees
from jaxgemm._files import driver_version, dumps, replace_text

RESULTS = REPOSITORY / "benchmarks" / "results"


class _OfSuite(TypedDict):
    suite: str


class Subject(TypedDict):
    """One kernel on one problem."""

    kernel: str  # the family, e.g. "wmma_tiled"
    config: str
    batch: int
    m: int
    n: int
    k: int
    layout: str
    lhs_dtype: str
    rhs_dtype: str
    out_dtype: str
    precision: str
    bias: bool
    activation: str | None


class MixedSubject(TypedDict):
    """What runs for one product with 4-bit weights."""

    kernel: str
    config: str
    m: int
    n: int
    k: int
    dtype: str
    group_size: int
    zeros: bool


class _Measured(TypedDict):
    us: float
    us_p10: float
    us_p90: float
    tflops: float
    gbps: float
    peers_us: dict[str, float]
    max_err_over_bound: float


class Row(_OfSuite, Subject, _Measured):
    """Its time in a suite. Times are microseconds per call, ``gbps`` counts every operand byte once."""


class MixedRow(_OfSuite, MixedSubject, _Measured):
    """The same of a product with 4-bit weights."""


class Header(TypedDict):
    """Where and from which sources the rows were measured."""

    device: str
    driver: str
    cuda: str
    jax: str
    date: str
    trees: dict[str, str]


class Document(Header):
    """A whole result file."""

    rows: list[Row]


class MixedDocument(Header):
    """A whole result file of products with 4-bit weights."""

    rows: list[MixedRow]


Key: TypeAlias = tuple[str, AnyProblem, str]
"""What a row answers: (suite, problem, full kernel name)."""
MIXED_SUITE = "int4"


def row_type(row: Mapping[str, Any]) -> type:
    """Its schema."""
    return MixedRow if row.get("suite") == MIXED_SUITE else Row


def problem_of(row: Mapping[str, Any]) -> Problem:
    """The problem that a row was measured on."""
    return Problem(**{name: row[name] for name in Problem.__dataclass_fields__})


def mixed_problem_of(row: Mapping[str, Any]) -> MixedProblem:
    """The same of a product with 4-bit weights."""
    return MixedProblem(**{name: row[name] for name in MixedProblem.__dataclass_fields__})


def any_problem_of(row: Mapping[str, Any]) -> AnyProblem:
    """The problem of a row of either kind."""
    return mixed_problem_of(row) if row_type(row) is MixedRow else problem_of(row)


def full_name(row: Mapping[str, Any]) -> str:
    """The kernel's name as custom calls carry it, e.g. "wmma_tiled:32x32x32"."""
    return f"{row['kernel']}:{row['config']}"


def key_of(row: Row) -> Key:
    """The key under which a row is found again when a run is resumed."""
    return row["suite"], any_problem_of(row), full_name(row)


def _rounded(value: float, digits: int = 5) -> float:
    """To significant digits: device times repeat to some 1 %."""
    return float(f"{value:.{digits}g}")


def make_row(
    suite: str,
    problem: AnyProblem,
    kernel: str,
    us: tuple[float, float, float],
    peers_us: dict[str, float],
    max_err_over_bound: float,
) -> Row:
    """A row from its measured microseconds (median, p10, p90); ``kernel`` is the full name "family:config".

    It is a :class:`MixedRow` if the problem is a mixed one.
    """
    family, _, config = kernel.partition(":")
    fields: dict[str, Any] = {
        "suite": suite,
        "kernel": family,
        "config": config,
        **{name: getattr(problem, name) for name in problem.__dataclass_fields__},
        "us": _rounded(us[0]),
        "us_p10": _rounded(us[1]),
        "us_p90": _rounded(us[2]),
        "tflops": _rounded(problem.flops / us[0] / 1e6),
        "gbps": _rounded(problem.min_bytes / us[0] / 1e3),
        "peers_us": {name: _rounded(value) for name, value in peers_us.items()},
        "max_err_over_bound": _rounded(max_err_over_bound, 3),
    }
    return cast(Row, fields)


def validate(document: Document) -> None:
    """Raises ValueError if a result file does not follow the schema."""
    expected = [*Header.__annotations__, "rows"]
    if sorted(document) != sorted(expected):
        raise ValueError(f"header fields are {sorted(document)}, expected {sorted(expected)}")
    for number, row in enumerate(document["rows"]):
        if list(row) != (fields := list(row_type(row).__annotations__)):
            raise ValueError(f"row {number} has the fields {list(row)}, expected {fields}")
        times = [row["us"], row["us_p10"], row["us_p90"], *row["peers_us"].values()]
        if not all(math.isfinite(us) and us > 0 for us in times):
            raise ValueError(f"row {number} has times that are not positive: {times}")
        if not row["max_err_over_bound"] <= 1:
            raise ValueError(f"row {number} is wrong: its error is {row['max_err_over_bound']} of the bound")


def geomean(values: Iterable[float]) -> float:
    """Geometric mean of positive values; nan of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _cuda(platform_version: str) -> str:
    """The CUDA version ("13.0") in what PJRT says of its platform ("... cuda 13000")."""
    found = re.search(r"cuda (\d+)", platform_version)
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else "unknown"


def current_header() -> Header:
    """The header for this process: device 0, its software and the sources of the working tree."""
    import jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "driver": driver_version(),
        "cuda": _cuda(device.client.platform_version),
        "jax": jax.__version__,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "trees": evidence_trees(),
    }


def _joined(old: str, new: str) -> str:
    return old if new in old.split(", ") else f"{old}, {new}"


@dataclass
class ResultFile:
    """Rows of one device, written to ``path`` after each change. Those of mixed problems have a file of their own."""

    path: Path
    document: Document
    rank: Callable[[Row], Any]

    @classmethod
    def open(cls, path: Path, header: Header, rank: Callable[[Row], Any]) -> ResultFile:
        """Resumes from ``path`` if its device, jax and source trees are the present ones; otherwise starts empty.

        Rows are kept sorted by ``rank``. Machines of one kind may differ in driver: the header then names all.
        """
        rows: list[Row] = []
        if path.exists():
            old = cast(Document, json.loads(path.read_text()))
            validate(old)
            if all(old[name] == header[name] for name in ("device", "jax", "trees")):
                rows = old["rows"]
                header = {**header, **{name: _joined(old[name], header[name]) for name in ("driver", "cuda")}}  # type: ignore[typeddict-item]
        return cls(path, {**header, "rows": rows}, rank)

    @property
    def keys(self) -> set[Key]:
        """What has been measured."""
        return {key_of(row) for row in self.document["rows"]}

    def add(self, row: Row) -> None:
        """Adds a row, in place of an older one with the same key, and rewrites the file in one step."""
        rows = [old for old in self.document["rows"] if key_of(old) != key_of(row)]
        self.document["rows"] = sorted([*rows, row], key=self.rank)
        validate(self.document)
        replace_text(self.path, dumps(self.document))
