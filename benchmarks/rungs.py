"""What is generated of docs/ladder.md: figures and hardware counters, rung by rung."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from benchmarks.counter_file import STALL, CounterDocument, CounterRow
from benchmarks.results import Document, full_name, problem_of
from benchmarks.shapes import LADDER_ROWS, LADDER_SIZE
from benchmarks.tables import (
    LADDER_HEADER,
    NOT_MEASURED,
    caption,
    format_ratio,
    format_us,
    ladder_label,
    ladder_lines,
    ladder_rows,
    table,
)

NOTHING_YET = "Not measured yet."
SIZES = (LADDER_SIZE, LADDER_ROWS[0].m)
"""M of what a rung may be measured at: squares, single rows."""

STALL_NAMES = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "mio_throttle": "the queue to shared memory",
    "lg_throttle": "the queue to global memory",
    "math_pipe_throttle": "the arithmetic pipe",
    "barrier": "barriers",
    "membar": "memory fences",
    "wait": "fixed latencies",
    "dispatch_stall": "dispatch",
    "not_selected": "the other warps' turn",
}
Counters = Mapping[str, float]


def inject(text: str, name: str, section: str, where: str) -> str:
    """``text`` with what stands between the markers called ``name`` replaced; ValueError unless each is there once."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{where} needs exactly one {begin} and one {end}")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{section}\n{end}{tail}"


def rung_sections(text: str) -> list[str]:
    """The families that a text has markers for."""
    return re.findall(r"<!-- begin rung (\w+) -->", text)


def figures(documents: Sequence[Document], family: str) -> list[str]:
    """The family's best configurations at LADDER_SIZE, by document; of single rows, if nobody measured it there."""
    for size in SIZES:
        found = [part for document in documents if (part := _figures(document, family, size))]
        if found:
            return found
    return []


def _figures(document: Document, family: str, size: int) -> str | None:
    lines = [
        cells
        for rows in ladder_rows(document, size).values()
        for found, cells in ladder_lines(document, rows)
        if found == family
    ]
    return f"{ladder_label(size)}, {caption(document)}:\n\n{table(LADDER_HEADER, lines)}" if lines else None


def _percent(key: str) -> Callable[[Counters], str]:
    return lambda counters: format_ratio(counters[key] / 100)


def _share(part: str, whole: str) -> Callable[[Counters], str]:
    return lambda counters: format_ratio(counters[part] / counters[whole]) if counters[whole] else "none"


def _waits(counters: Counters) -> str:
    stalls = {key.removeprefix(STALL): value for key, value in counters.items() if key.startswith(STALL)}
    most = sorted(stalls, key=lambda reason: -stalls[reason])[:2]
    return ", ".join(STALL_NAMES.get(reason, reason) for reason in most) or NOT_MEASURED


COUNTER_COLUMNS: dict[str, Callable[[Counters], str]] = {
    "µs": lambda counters: format_us(counters["duration_us"]),
    "tensor pipe": _percent("tensor_pipe_pct"),
    "FMA pipe": _percent("fma_pipe_pct"),
    "issue slots": _percent("issue_slots_pct"),
    "L1, shared memory": _percent("l1_pct"),
    "L2": _percent("l2_pct"),
    "DRAM": _percent("dram_pct"),
    "warps": _percent("warps_active_pct"),
    "registers": lambda counters: f"{counters['registers_per_thread']:.0f}",
    "conflicts, loads": _share("shared_load_conflicts", "shared_load_wavefronts"),
    "conflicts, stores": _share("shared_store_conflicts", "shared_store_wavefronts"),
    "<warps wait for": _waits,
}


def _cell(form: Callable[[Counters], str], counters: Counters) -> str:
    try:
        return form(counters)
    except KeyError:
        return NOT_MEASURED


def counter_line(row: CounterRow) -> list[str]:
    """Cells of one kernel."""
    cells = [_cell(form, row["counters"]) for form in COUNTER_COLUMNS.values()]
    return [f"`{full_name(row)}`", problem_of(row).dtype_label, *cells]


def counter_table(document: CounterDocument, family: str | None = None) -> str | None:
    """The counters at LADDER_SIZE, and of single rows, of a family or of all; None if there are none."""
    tables = []
    for size in SIZES:
        lines = [counter_line(row) for row in document["rows"] if row["m"] == size and family in (None, row["kernel"])]
        if lines:
            cells = table(["kernel", "<dtype, precision", *COUNTER_COLUMNS], lines)
            tables.append(f"{ladder_label(size)} under Nsight Compute, {caption(document)}:\n\n{cells}")
    return "\n\n".join(tables) or None


def ladder_page(text: str, documents: Sequence[Document], counters: Sequence[CounterDocument]) -> str:
    """docs/ladder.md with its generated parts; ValueError if a measured family has no section."""
    where = "docs/ladder.md"
    measured = dict.fromkeys(row["kernel"] for document in documents for row in document["rows"])
    for family in dict.fromkeys([*measured, *rung_sections(text)]):
        parts = [*figures(documents, family), *(counter_table(document, family) for document in counters)]
        section = "\n\n".join(part for part in parts if part) or NOTHING_YET
        text = inject(text, f"rung {family}", section, where)
    tables = [found for document in counters if (found := counter_table(document))]
    return inject(text, "counters", "\n\n".join(tables) or NOTHING_YET, where)
