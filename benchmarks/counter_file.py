"""The file of hardware counters: which counters there are, their schema, and reading what ``ncu`` prints."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from benchmarks.results import Header, Subject, full_name, problem_of
from benchmarks.shapes import Problem

SUFFIX = "-counters"
STALL = "stall_"


@dataclass(frozen=True)
class Counter:
    """``key`` is its name in the file, ``metrics`` are what ``ncu`` may call it: the first that the GPU has is read."""

    key: str
    metrics: tuple[str, ...]


def _stall(reason: str) -> Counter:
    return Counter(f"{STALL}{reason}", (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio",))


_OF_PEAK = "avg.pct_of_peak_sustained_active"

COUNTERS: tuple[Counter, ...] = (
    Counter("duration_us", ("gpu__time_duration.sum",)),
    # Share of the cycles of a busy SM, or of all cycles for what SMs share.
    Counter(
        "tensor_pipe_pct",
        (
            f"sm__pipe_tensor_cycles_active.{_OF_PEAK}",
            f"sm__inst_executed_pipe_tensor.{_OF_PEAK}",
            f"sm__pipe_tensor_op_hmma_cycles_active.{_OF_PEAK}",
        ),
    ),
    Counter("fma_pipe_pct", (f"sm__pipe_fma_cycles_active.{_OF_PEAK}", f"sm__inst_executed_pipe_fma.{_OF_PEAK}")),
    Counter("issue_slots_pct", (f"smsp__issue_active.{_OF_PEAK}", f"sm__inst_issued.{_OF_PEAK}")),
    Counter("l1_pct", (f"l1tex__throughput.{_OF_PEAK}",)),
    Counter("l2_pct", ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)),
    Counter("l2_hit_pct", ("lts__t_sector_hit_rate.pct",)),
    Counter("dram_pct", ("dram__throughput.avg.pct_of_peak_sustained_elapsed",)),
    Counter("warps_active_pct", (f"sm__warps_active.{_OF_PEAK}",)),
    Counter("registers_per_thread", ("launch__registers_per_thread",)),
    # Shared memory: instructions, 128-byte passes over the banks ("wavefronts"), and those that conflicts added.
    Counter("ldsm_instructions", ("smsp__inst_executed_op_ldsm.sum", "sm__inst_executed_op_ldsm.sum")),
    Counter("shared_wavefronts", ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",)),
    Counter("shared_load_wavefronts", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",)),
    Counter("shared_store_wavefronts", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",)),
    Counter("shared_load_conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",)),
    Counter("shared_store_conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",)),
    Counter("bank_reads", ("l1tex__data_bank_reads.sum",)),
    Counter("bank_writes", ("l1tex__data_bank_writes.sum",)),
    Counter("dram_read_bytes", ("dram__bytes_read.sum",)),
    Counter("dram_written_bytes", ("dram__bytes_write.sum",)),
    # Spilled registers.
    Counter("local_load_bytes", ("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",)),
    Counter("local_store_bytes", ("l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",)),
    # Warps that wait, by what for, for each instruction that is issued.
    *map(
        _stall,
        (
            "long_scoreboard",
            "short_scoreboard",
            "mio_throttle",
            "lg_throttle",
            "math_pipe_throttle",
            "barrier",
            "membar",
            "wait",
            "dispatch_stall",
            "not_selected",
        ),
    ),
)

_MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6}


class CounterRow(Subject):
    """Its counters; one that the GPU does not have is left out."""

    counters: dict[str, float]


class CounterDocument(Header):
    """A whole file; ``metrics`` says which of ``ncu``'s metrics each counter is."""

    metrics: dict[str, str]
    rows: list[CounterRow]


@dataclass
class Launch:
    """What ``ncu`` says of one launch: values and units by metric."""

    kernel: str  # demangled
    values: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def available_metrics(known: Collection[str]) -> tuple[dict[str, str], list[Counter]]:
    """({counter: metric to read}, counters without one), from the base names of the metrics that the GPU has.

    ``launch__`` metrics are no hardware counters: every GPU has them, and ``ncu`` does not list them.
    """
    metrics: dict[str, str] = {}
    for counter in COUNTERS:
        for metric in counter.metrics:
            base = metric.split(".")[0]
            if base in known or base.startswith("launch__"):
                metrics[counter.key] = metric
                break
    return metrics, [counter for counter in COUNTERS if counter.key not in metrics]


def launches_of(text: str) -> list[Launch]:
    """The launches in what ``ncu --csv`` printed, in order; a value that is no number is left out."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError(f"ncu printed no table:\n{text[-3000:]}")
    launches: dict[str, Launch] = {}
    table = [line for line in lines[begin:] if line.startswith('"')]
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        launch = launches.setdefault(row["ID"], Launch(row["Kernel Name"]))
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue
        launch.values[row["Metric Name"]] = value
        launch.units[row["Metric Name"]] = row["Metric Unit"]
    return list(launches.values())


def make_counter_row(problem: Problem, kernel: str, launch: Launch, metrics: Mapping[str, str]) -> CounterRow:
    """A row from a launch; ``kernel`` is the full name."""
    counters = {key: launch.values[metric] for key, metric in metrics.items() if metric in launch.values}
    if "duration_us" in counters:
        counters["duration_us"] *= _MICROSECONDS[launch.units[metrics["duration_us"]]]
    family, _, config = kernel.partition(":")
    rounded = {key: float(f"{value:.5g}") for key, value in counters.items()}
    return cast(CounterRow, {"kernel": family, "config": config, **dataclasses.asdict(problem), "counters": rounded})


def validate_counters(document: CounterDocument) -> None:
    """Raises ValueError if a file does not follow the schema."""
    expected = [*Header.__annotations__, "metrics", "rows"]
    if sorted(document) != sorted(expected):
        raise ValueError(f"header fields are {sorted(document)}, expected {sorted(expected)}")
    unknown = set(document["metrics"]) - {counter.key for counter in COUNTERS}
    if unknown:
        raise ValueError(f"there are no counters {', '.join(sorted(unknown))}")
    for number, row in enumerate(document["rows"]):
        if list(row) != list(CounterRow.__annotations__):
            raise ValueError(f"row {number} has the fields {list(row)}, expected {list(CounterRow.__annotations__)}")
        if not set(row["counters"]) <= set(document["metrics"]):
            raise ValueError(f"row {number} has counters whose metric is not given")
        if not all(math.isfinite(value) and value >= 0 for value in row["counters"].values()):
            raise ValueError(f"row {number} has counters that are negative or no numbers: {row['counters']}")


def counter_path(results: Path) -> Path:
    """The counters that belong to a file of results."""
    return results.with_name(f"{results.stem}{SUFFIX}.json")


def load_counters(path: Path) -> CounterDocument:
    """Reads and validates a file."""
    document: CounterDocument = json.loads(path.read_text())
    try:
        validate_counters(document)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return document


def merged(old: CounterDocument | None, new: CounterDocument, order: Sequence[str]) -> CounterDocument:
    """``new`` with the other rows of ``old``, if they are of the same sources and device; in the kernels' order."""
    rows = {(full_name(row), problem_of(row)): row for row in new["rows"]}
    if old is not None and all(old[name] == new[name] for name in ("device", "jax", "trees", "metrics")):
        rows = {(full_name(row), problem_of(row)): row for row in old["rows"]} | rows
    rank = {name: i for i, name in enumerate(order)}
    merged_rows = sorted(rows.values(), key=lambda row: rank.get(full_name(row), len(rank)))
    document: CounterDocument = {**new, "rows": merged_rows}
    validate_counters(document)
    return document
