"""Markdown tables of result rows, and which rows of a result file belong side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from benchmarks.limits import LIMITS, arithmetic
from benchmarks.results import Document, Header, MixedRow, Row, full_name, geomean, problem_of
from benchmarks.shapes import LADDER_ROWS, LADDER_SIZE, Problem, ladder

NOT_MEASURED = "n/a"
PEER_NAMES = {"jnp": "jnp.dot", "jnp_cublas": "jnp.dot, cuBLAS only"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the columns after the first are right-aligned unless their name starts with "<"."""
    names = [name.lstrip("<") for name in header]
    rule = [":--" if i == 0 or name.startswith("<") else "--:" for i, name in enumerate(header)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [names, rule, *rows])


def format_us(us: float) -> str:
    return f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def format_tflops(tflops: float) -> str:
    return f"{tflops:.1f}" if tflops < 100 else f"{tflops:.0f}"


def format_ratio(ratio: float) -> str:
    return f"{100 * ratio:.1f} %" if ratio < 0.1 else f"{100 * ratio:.0f} %"


def optional(value: float | None, form: Callable[[float], str]) -> str:
    return NOT_MEASURED if value is None else form(value)


def of_peer(row: Row, peer: str) -> float | None:
    """Speed in units of the peer's, None if the peer was not measured."""
    us = row["peers_us"].get(peer)
    return None if us is None else us / row["us"]


def of_limit(row: Row, device: str) -> str:
    """Speed in units of what the device allows."""
    limits = LIMITS.get(device)
    if limits is None or arithmetic(problem_of(row)) not in limits.datasheet_tflops:
        return NOT_MEASURED
    return format_ratio(limits.floor_us(problem_of(row)) / row["us"])


def caption(header: Header) -> str:
    """What was measured on, as a list of words."""
    return (
        f"{header['device']}, driver {header['driver']}, CUDA {header['cuda']}, jax {header['jax']}, "
        f"{header['date'][:10]}"
    )


def method(header: Header) -> str:
    """Where the figures come from, in one sentence."""
    return f"{caption(header)}: device time (median), normally distributed inputs, not in the L2 cache."


def ladder_label(size: int) -> str:
    """What the ladder's problems of so many rows are called."""
    row = LADDER_ROWS[0]
    return f"{row.batch} products of {row.m} x {row.n} x {row.k}" if size == row.m else f"{size}³"


def ladder_rows(document: Document, size: int) -> dict[Problem, list[Row]]:
    """Rows of the ladder at one M by problem, which is to say by dtype and precision, in ladder order."""
    groups: dict[Problem, list[Row]] = {problem: [] for problem in ladder() if problem.m == size}
    for row in document["rows"]:
        if row["suite"] == "ladder" and (problem := problem_of(row)) in groups:
            groups[problem].append(row)
    return {problem: rows for problem, rows in groups.items() if rows}


def best_of_families(rows: Sequence[Row]) -> list[Row]:
    """The fastest configuration of each family, in the order of the families."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["kernel"] not in best or row["us"] < best[row["kernel"]]["us"]:
            best[row["kernel"]] = row
    return list(best.values())


def fastest_of_families(rows: Iterable[Row], problem: Problem) -> dict[str, Row]:
    """By family, what was measured to be fastest at LADDER_SIZE on a square like ``problem``; or on it, if a row."""
    square = replace(problem, m=LADDER_SIZE, n=LADDER_SIZE, k=LADDER_SIZE)
    wanted = problem if problem in LADDER_ROWS else square
    found = [row for row in rows if row["suite"] == "ladder" and problem_of(row) == wanted]
    return {row["kernel"]: row for row in best_of_families(found)}


LADDER_HEADER = ["kernel", "<dtype, precision", "µs", "TFLOP/s", "x rung before", "of jnp.dot", "of the limit"]


def ladder_lines(document: Document, rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """(family, cells under LADDER_HEADER) of the best configurations of one group, each against the rung before."""
    lines = []
    before: Row | None = None
    for row in best_of_families(rows):
        cells = [
            f"`{full_name(row)}`",
            problem_of(row).dtype_label,
            format_us(row["us"]),
            format_tflops(row["tflops"]),
            "" if before is None else f"{before['us'] / row['us']:.2f}",
            optional(of_peer(row, "jnp"), format_ratio),
            of_limit(row, document["device"]),
        ]
        lines.append((row["kernel"], cells))
        before = row
    return lines


def ladder_table(document: Document) -> str:
    """The ladder at LADDER_SIZE cubed: best configuration of each family, with what it gains over the rung before."""
    lines: list[list[str]] = []
    for problem, rows in ladder_rows(document, LADDER_SIZE).items():
        lines += [cells for _, cells in ladder_lines(document, rows)]
        lines += [
            [PEER_NAMES[peer], problem.dtype_label, format_us(us), format_tflops(problem.flops / us / 1e6), "", "", ""]
            for peer, us in rows[-1]["peers_us"].items()
        ]
    return table(LADDER_HEADER, lines)


DETAIL_HEADER = [
    "problem",
    "<kernel",
    "µs (p10 to p90)",
    "TFLOP/s",
    "GB/s",
    *(f"{name}, µs" for name in PEER_NAMES.values()),
    "of jnp.dot",
    "of the limit",
    "error / bound",
]


def measured_cells(label: str, row: Row | MixedRow) -> list[str]:
    """What the rows of all detailed tables begin with."""
    return [
        label,
        f"`{full_name(row)}`",
        f"{format_us(row['us'])} ({format_us(row['us_p10'])} to {format_us(row['us_p90'])})",
        format_tflops(row["tflops"]),
        f"{row['gbps']:,.0f}",
    ]


def detail_row(row: Row, device: str) -> list[str]:
    """Cells under DETAIL_HEADER."""
    return [
        *measured_cells(problem_of(row).label, row),
        *(optional(row["peers_us"].get(peer), format_us) for peer in PEER_NAMES),
        optional(of_peer(row, "jnp"), format_ratio),
        of_limit(row, device),
        f"{row['max_err_over_bound']:.2g}",
    ]


def geomeans(rows: Sequence[Row]) -> list[str]:
    """Cells with the mean speed in units of each peer's."""
    cells = []
    for peer in PEER_NAMES:
        ratios = [ratio for row in rows if (ratio := of_peer(row, peer)) is not None]
        cells.append(f"{geomean(ratios):.3f}" if ratios else NOT_MEASURED)
    return cells
