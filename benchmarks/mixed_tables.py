"""The tables of suite int4: docs/int4_benchmarks.md, and all rows of a device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from benchmarks.limits import LIMITS
from benchmarks.mixed import PLAIN, XLA_INT4
from benchmarks.results import (
    MIXED_SUITE,
    Document,
    MixedDocument,
    MixedRow,
    geomean,
    mixed_problem_of,
    validate,
)
from benchmarks.rungs import NOTHING_YET, inject
from benchmarks.shapes import INT4_M, INT4_NK, INT4_VARIANTS, INT4_VARIANTS_M, INT4_VARIANTS_NK, MixedProblem, int4
from benchmarks.tables import NOT_MEASURED, PEER_NAMES, format_ratio, format_us, measured_cells, method, optional, table

DECODE_M = tuple(m for m in INT4_M if m <= 16)
MIXED_PEER_NAMES = {**PEER_NAMES, XLA_INT4: "XLA's int4", PLAIN: "plain"}
Rows = dict[MixedProblem, MixedRow]


def load_mixed(directory: Path) -> dict[Path, MixedDocument]:
    """Every file of the suite in a directory of results, validated; none if nothing was measured yet."""
    documents: dict[Path, MixedDocument] = {}
    for path in sorted((directory / MIXED_SUITE).glob("*.json")):
        document = json.loads(path.read_text())
        try:
            validate(cast(Document, document))
            if any(row["suite"] != MIXED_SUITE for row in document["rows"]):
                raise ValueError(f"it has rows of another suite than {MIXED_SUITE}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
        documents[path] = document
    return documents


def rows_of(document: MixedDocument) -> Rows:
    """By problem, in the order of the suite."""
    found = {mixed_problem_of(row): row for row in document["rows"]}
    return {problem: found[problem] for problem in int4() if problem in found}


def dense_us(row: MixedRow) -> float | None:
    """Of ``jnp.dot`` of bfloat16 weights, compiled in the one way or the other."""
    return next((row["peers_us"][name] for name in PEER_NAMES if name in row["peers_us"]), None)


def of_bandwidth(row: MixedRow, device: str) -> str:
    """The time that moving weights, x and output once would take, as a share of the time."""
    limits = LIMITS.get(device)
    return NOT_MEASURED if limits is None else format_ratio(row["gbps"] / limits.copy_gbps)


def speed_table(rows: Rows) -> str:
    """Means over the matrices by M."""

    def figures(ratios: Sequence[float | None]) -> list[str]:
        values = [ratio for ratio in ratios if ratio is not None]
        count = f"{len(values)} of {len(INT4_NK)}"
        if not values:
            return [count, *[NOT_MEASURED] * 3]
        return [count, *(f"{value:.2f}" for value in (geomean(values), min(values), max(values)))]

    lines = []
    for m in INT4_M:
        found = [rows[problem] for n, k in INT4_NK if (problem := MixedProblem(m, n, k)) in rows]
        dense = [None if (us := dense_us(row)) is None else us / row["us"] for row in found]
        xla = [None if (us := row["peers_us"].get(XLA_INT4)) is None else us / row["us"] for row in found]
        lines.append([str(m), *figures(dense), *figures(xla)])
    header = ["M", "matrices", "speed / jnp.dot, mean", "lowest", "highest", "matrices", "speed / XLA's int4, mean"]
    return table([*header, "lowest", "highest"], lines)


def decode_table(rows: Rows, device: str) -> str:
    """Times of few rows."""

    def cell(problem: MixedProblem) -> str:
        row = rows.get(problem)
        return NOT_MEASURED if row is None else f"{format_us(row['us'])} ({of_bandwidth(row, device)})"

    lines = [[f"{n} x {k}", *(cell(MixedProblem(m, n, k)) for m in DECODE_M)] for n, k in INT4_NK]
    return table(["N x K", *(f"M = {m}" for m in DECODE_M)], lines)


def variant_table(rows: Rows) -> str:
    """Times of variants in units of the plain problem's, of the same rounds."""

    def cell(problem: MixedProblem) -> str:
        row = rows.get(problem)
        return (
            NOT_MEASURED if row is None or PLAIN not in row["peers_us"] else f"{row['us'] / row['peers_us'][PLAIN]:.2f}"
        )

    lines = []
    for n, k in INT4_VARIANTS_NK:
        for m in INT4_VARIANTS_M:
            plain = MixedProblem(m, n, k)
            cells = [cell(replace(plain, **change)) for change in INT4_VARIANTS.values()]
            lines.append([f"{m} x {n} x {k}", *cells])
    return table(["M x N x K", *INT4_VARIANTS], lines)


def section(document: MixedDocument) -> str:
    """The summary of one device."""
    rows = rows_of(document)
    missing = len(int4()) - len(rows)
    gap = f" **{missing} of the suite's {len(int4())} problems are not measured.**" if missing else ""
    return "\n\n".join(
        [
            method(document) + gap,
            "Speed in units of `jnp.dot`'s with bfloat16 weights, and of XLA's with int4 weights: geometric means over "
            "the matrices.",
            speed_table(rows),
            "Microseconds, and weights, x and result over the time as a share of the bandwidth of a large copy:",
            decode_table(rows, document["device"]),
            "Time of variants in units of the plain problem's (bfloat16, groups of 128, no zero points):",
            variant_table(rows),
        ]
    )


def int4_page(text: str, documents: Sequence[MixedDocument]) -> str:
    """docs/int4_benchmarks.md with its generated part."""
    parts = [section(document) for document in documents if document["rows"]]
    return inject(text, MIXED_SUITE, "\n\n".join(parts) or NOTHING_YET, "docs/int4_benchmarks.md")


MIXED_DETAIL_HEADER = [
    "problem",
    "<kernel",
    "µs (p10 to p90)",
    "TFLOP/s",
    "GB/s",
    "of the bandwidth",
    *(f"{name}, µs" for name in MIXED_PEER_NAMES.values()),
    *(f"speed / {name}" for name in MIXED_PEER_NAMES.values()),
    "error / bound",
]


def mixed_detail_row(problem: MixedProblem, row: MixedRow, device: str) -> list[str]:
    """Cells under MIXED_DETAIL_HEADER."""
    peers_us = [row["peers_us"].get(name) for name in MIXED_PEER_NAMES]
    return [
        *measured_cells(problem.label, row),
        of_bandwidth(row, device),
        *(optional(us, format_us) for us in peers_us),
        *(optional(us, lambda us: f"{us / row['us']:.2f}") for us in peers_us),
        f"{row['max_err_over_bound']:.2g}",
    ]


def mixed_device_page(document: MixedDocument) -> str:
    """All rows of one device."""
    device = document["device"]
    lines = [mixed_detail_row(problem, row, device) for problem, row in rows_of(document).items()]
    sources = ", ".join(f"`{name}/` is tree `{sha}`" for name, sha in document["trees"].items())
    parts = [
        f"# {device}, 4-bit weights",
        f"Generated from the JSON file beside this one by `python -m benchmarks.render`; docs/int4_benchmarks.md says "
        f"what is measured. {method(document)} Problems are written M x N x K, g is the size of groups. GB/s counts "
        "codes, scales, zero points, x and the result once.",
        f"Sources: {sources}.",
        table(MIXED_DETAIL_HEADER, lines),
    ]
    return "\n\n".join(parts) + "\n"
