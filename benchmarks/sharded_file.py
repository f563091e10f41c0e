"""The files of sharded layers: their schema, and the tables of docs/sharding.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.results import Header
from benchmarks.rungs import NOTHING_YET, inject
from benchmarks.sharded_layers import ALL_BLOCKS, PARTITIONS
from benchmarks.tables import NOT_MEASURED, caption, format_us, table

DIRECTORY = "sharded"
"""Under benchmarks/results, so that result files are not mixed with files of another schema."""
PAGE = "docs/sharding.md"

TRAINING = "training"
SEQUENCE = "sequence"
"""The MLP, sequence-parallel."""
ALL_REDUCE = "all_reduce"
FORMATS = ("bfloat16", "int4")
MAX_DIFFERENCE = 2.0**-5
"""Of both results, whose every product, and each sum of two devices, is rounded to bfloat16; tests are elementwise."""

TITLES = {
    ("layers", "bfloat16"): "Tensor-parallel, bfloat16 weights",
    ("layers", "int4"): "Tensor-parallel, 4-bit weights against bfloat16 weights",
    (SEQUENCE, "bfloat16"): "Sequence-parallel, bfloat16 weights",
    (SEQUENCE, "int4"): "Sequence-parallel, 4-bit weights against bfloat16 weights",
    (TRAINING, "bfloat16"): "A training step, data-parallel",
}
BARS = {"bfloat16": 1.0, "int4": 2.5}
"""How many times as fast as ``jnp.matmul`` with bfloat16 weights a layer or step should be, by the weights' format; but
nothing is asked of :data:`SEQUENCE`.
"""
BLOCK_NAMES = {
    "mlp": "MLP",
    "attention": "attention projections",
    "joined_mlp": "MLP, gate and up joined",
    "joined_attention": "attention projections, q, k and v joined",
    SEQUENCE: "MLP, tokens split",
    TRAINING: "MLP, step",
}
PARTITION_NAMES = {"auto": "jit, automatic axes", "explicit": "jit, explicit axes", "shard_map": "shard_map"}


class ShardedRow(TypedDict):
    """One chain of layers. Times are microseconds per layer, in which all devices work at the same time.

    ``us[variant]`` is [median, p10, p90] by the host's clock; ``kernel_us[variant]`` are the durations of all kernels
    but collectives by CUPTI, the mean of all devices, or there is none.
    """

    block: str
    weights: str
    m: int
    partition: str
    layers: int
    kernels: list[str]  # full names of what jaxgemm calls
    us: dict[str, list[float]]
    kernel_us: dict[str, float]
    difference: float  # of both results, by the norm of one


class ShardedDocument(Header):
    """A whole file. ``errors`` are what could not be measured, and why."""

    devices: int
    dims: dict[str, int]
    rounds: int
    errors: dict[str, str]
    rows: list[ShardedRow]


def variants(row: Mapping[str, Any]) -> list[str]:
    """What a row has times of."""
    return ["jaxgemm", "jnp", ALL_REDUCE] if row["block"] in ALL_BLOCKS else ["jaxgemm", "jnp"]


def speed(row: ShardedRow) -> float:
    """In units of jnp.matmul's, by the host's clock."""
    return row["us"]["jnp"][0] / row["us"]["jaxgemm"][0]


def below_bar(row: ShardedRow) -> bool:
    """Whether a row has a bar that it does not reach."""
    return row["block"] != SEQUENCE and speed(row) < BARS[row["weights"]]


def validate_sharded(document: ShardedDocument) -> None:
    """Raises ValueError if a file does not follow the schema."""
    expected = {*Header.__annotations__, *ShardedDocument.__annotations__}
    if set(document) != expected:
        raise ValueError(f"header fields are {sorted(document)}, expected {sorted(expected)}")
    for name in ("devices", "rounds"):
        if type(document[name]) is not int or document[name] < 1:
            raise ValueError(f"{name} must be a positive number, not {document[name]!r}")
    seen = set()
    for number, row in enumerate(document["rows"]):
        if list(row) != list(ShardedRow.__annotations__):
            raise ValueError(f"row {number} has the fields {list(row)}, expected {list(ShardedRow.__annotations__)}")
        if row["block"] not in BLOCK_NAMES or row["weights"] not in FORMATS:
            raise ValueError(f"row {number} is of {row['block']!r} with weights of {row['weights']!r}")
        if row["partition"] not in PARTITIONS:
            raise ValueError(f"row {number} is partitioned by {row['partition']!r}")
        if list(row["us"]) != variants(row) or (row["kernel_us"] and list(row["kernel_us"]) != ["jaxgemm", "jnp"]):
            raise ValueError(f"row {number} has times of {list(row['us'])} and {list(row['kernel_us'])}")
        for median, p10, p90 in row["us"].values():
            if not (0 < p10 <= median <= p90 < math.inf):
                raise ValueError(f"row {number} has times that cannot be: {median}, {p10} to {p90}")
        if not all(0 < us < math.inf for us in row["kernel_us"].values()):
            raise ValueError(f"row {number} has times of kernels that cannot be: {row['kernel_us']}")
        if not 0 <= row["difference"] <= MAX_DIFFERENCE:
            raise ValueError(f"row {number} is wrong: the results differ by {row['difference']}")
        if (key := (row["block"], row["weights"], row["m"], row["partition"])) in seen:
            raise ValueError(f"row {number} is there twice: {key}")
        seen.add(key)


def load_sharded(directory: Path) -> list[ShardedDocument]:
    """Every file of a directory of results, validated; none if nothing was measured yet."""
    documents: list[ShardedDocument] = []
    for path in sorted((directory / DIRECTORY).glob("*.json")):
        document: ShardedDocument = json.loads(path.read_text())
        try:
            validate_sharded(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error
        documents.append(document)
    return documents


_HEADER = [
    "block",
    "M",
    "<split by",
    "<kernels",
    "jaxgemm, µs (p10 to p90)",
    "jnp.matmul, µs (p10 to p90)",
    "speed / jnp.matmul",
    "all-reduce alone, µs",
    "kernels of jaxgemm, µs",
    "of jnp.matmul, µs",
    "speed / jnp.matmul",
]


def _times(row: ShardedRow, variant: str) -> str:
    median, p10, p90 = row["us"][variant]
    return f"{format_us(median)} ({format_us(p10)} to {format_us(p90)})"


def _line(row: ShardedRow) -> list[str]:
    kernels, alone = row["kernel_us"], row["us"].get(ALL_REDUCE)
    return [
        *(BLOCK_NAMES[row["block"]], f"{row['m']:,}", PARTITION_NAMES[row["partition"]]),
        ", ".join(f"`{name}`" for name in row["kernels"]),
        *(_times(row, "jaxgemm"), _times(row, "jnp"), f"{speed(row):.2f}"),
        NOT_MEASURED if alone is None else format_us(alone[0]),
        *(format_us(kernels[name]) if kernels else NOT_MEASURED for name in ("jaxgemm", "jnp")),
        f"{kernels['jnp'] / kernels['jaxgemm']:.2f}" if kernels else NOT_MEASURED,
    ]


def sharded_tables(document: ShardedDocument) -> list[str]:
    """One part for each kind of row, with how many of them reach the bar."""
    parts = []
    for (kind, weights), title in TITLES.items():
        blocks = ALL_BLOCKS if kind == "layers" else (kind,)
        rows = [row for row in document["rows"] if row["block"] in blocks and row["weights"] == weights]
        if not rows:
            continue
        reached = (
            f": {len(rows) - sum(map(below_bar, rows))} of {len(rows)} are at least {BARS[weights]:g} times as fast as"
        )
        parts.append(f"**{title}**" + ("." if kind == SEQUENCE else f"{reached} `jnp.matmul`."))
        parts.append(table(_HEADER, map(_line, rows)))
    if document["errors"]:
        failed = "\n".join(f"- {label}: {error.splitlines()[0]}" for label, error in document["errors"].items())
        parts.append(f"What failed:\n\n{failed}")
    return parts


def sharded_page(text: str, documents: Sequence[ShardedDocument]) -> str:
    """docs/sharding.md with its generated part."""
    parts = []
    for document in documents:
        parts.append(
            f"{document['devices']} x {caption(document)}. Microseconds per layer, {document['rounds']} rounds."
        )
        parts += sharded_tables(document)
    return inject(text, "sharding", "\n\n".join(parts) or NOTHING_YET, PAGE)
