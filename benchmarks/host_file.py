"""The file of host costs: its schema, and the tables of docs/host_cost.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from benchmarks.results import Header
from benchmarks.rungs import NOTHING_YET, inject
from benchmarks.tables import NOT_MEASURED, PEER_NAMES, caption, table

DIRECTORY = "host"
"""Under benchmarks/results, so that result files are not mixed with files of another schema."""

VARIANT_NAMES = {"jaxgemm": "jaxgemm", **PEER_NAMES}
MODES: dict[str, dict[str, str | bool | int]] = {
    "default": {},
    # A size that no program reaches. Emptying the list of commands would depend on how XLA reads an empty option.
    "off": {"xla_gpu_graph_min_graph_size": 1_000_000},
    "on": {
        "xla_gpu_graph_min_graph_size": 1,
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL",
    },
}
"""What XLA is told about command buffers; by default it makes one of several operations, not of a single one."""
FIGURES = {
    "dispatch": "Dispatch: until the last call returned",
    "burst": "Dispatch in bursts: the same, with an idle device before every burst",
    "total": "Total: until the last result is there",
}


class HostRow(TypedDict):
    """One program: ``us[variant][figure]`` is [median, p10, p90] over the rounds, in microseconds per call."""

    case: str
    kernel: str  # full name of what jaxgemm calls
    command_buffers: str
    us: dict[str, dict[str, list[float]]]


class HostDocument(Header):
    """A whole file: ``rounds`` of ``calls`` calls, or of bursts of ``burst`` calls."""

    calls: int
    burst: int
    rounds: int
    rows: list[HostRow]


def validate_host(document: HostDocument) -> None:
    """Raises ValueError if a file does not follow the schema."""
    expected = [*Header.__annotations__, *HostDocument.__annotations__]
    if sorted(document) != sorted(set(expected)):
        raise ValueError(f"header fields are {sorted(document)}, expected {sorted(set(expected))}")
    if not all(
        type(count) is int and count > 0 for count in (document["calls"], document["burst"], document["rounds"])
    ):
        raise ValueError("calls, burst and rounds must be positive")
    seen = set()
    for number, row in enumerate(document["rows"]):
        if list(row) != list(HostRow.__annotations__):
            raise ValueError(f"row {number} has the fields {list(row)}, expected {list(HostRow.__annotations__)}")
        if row["command_buffers"] not in MODES or not {"jaxgemm", "jnp"} <= set(row["us"]) <= set(VARIANT_NAMES):
            raise ValueError(f"row {number} has command buffers {row['command_buffers']!r}, variants {list(row['us'])}")
        for variant, figures in row["us"].items():
            if list(figures) != list(FIGURES):
                raise ValueError(f"row {number} has of {variant} {list(figures)}, expected {list(FIGURES)}")
            for times in figures.values():
                median, p10, p90 = times
                if not (0 < p10 <= median <= p90 < math.inf):
                    raise ValueError(f"row {number} has times of {variant} that cannot be: {times}")
        if (key := (row["case"], row["command_buffers"])) in seen:
            raise ValueError(f"row {number} is there twice: {', '.join(key)}")
        seen.add(key)


def load_host(directory: Path) -> list[HostDocument]:
    """Every file of a directory of results, validated; none if nothing was measured yet."""
    documents: list[HostDocument] = []
    for path in sorted((directory / DIRECTORY).glob("*.json")):
        document: HostDocument = json.loads(path.read_text())
        try:
            validate_host(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error
        documents.append(document)
    return documents


def _cell(row: HostRow, variant: str, figure: str) -> str:
    if variant not in row["us"]:
        return NOT_MEASURED
    median, p10, p90 = row["us"][variant][figure]
    return f"{median:.1f} ({p10:.1f} to {p90:.1f})"


def host_table(document: HostDocument, figure: str) -> str:
    """One figure of all variants, and jaxgemm's in units of jnp.dot's."""
    header = ["case", "<kernel", "<command buffers", *(f"{name}, µs" for name in VARIANT_NAMES.values())]
    lines = [
        [
            *(row["case"], f"`{row['kernel']}`", row["command_buffers"]),
            *(_cell(row, variant, figure) for variant in VARIANT_NAMES),
            f"{row['us']['jaxgemm'][figure][0] / row['us']['jnp'][figure][0]:.2f}",
        ]
        for row in document["rows"]
    ]
    return table([*header, "jaxgemm / jnp.dot"], lines)


def host_page(text: str, documents: Sequence[HostDocument]) -> str:
    """docs/host_cost.md with its generated part."""
    parts = []
    for document in documents:
        counts = f"{document['rounds']} rounds of {document['calls']:,} calls, bursts of {document['burst']}"
        parts.append(f"{caption(document)}, {counts}. Median (p10 to p90) of microseconds per call.")
        parts += [f"**{title}**\n\n{host_table(document, figure)}" for figure, title in FIGURES.items()]
    return inject(text, "host cost", "\n\n".join(parts) or NOTHING_YET, "docs/host_cost.md")
