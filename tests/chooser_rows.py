"""What the model chooses, against all that was tried of a problem: rows of chooser_times_{gemv,odd,small}.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.chooser_times import JNP
from jaxgemm._native import _core
from tests.helpers import problem

Row = dict[str, Any]


def document_of(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / name).read_text())


def row_id(row: Row) -> str:
    return "-".join(str(row[name]) for name in row if name != "us")


def asked(row: Row) -> _core.Problem:
    dtypes = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), row["dtype"])
    settings = {"batch": row["batch"], "layout": row["layout"], "precision": row["precision"], "sm": 90}
    return problem(row["m"], row["n"], row["k"], **dtypes, **settings)


def loss(row: Row, again: str, family: str = "") -> float:
    """What the model chooses, of all or of a family, takes so many times as long as the fastest of them.

    Args:
      again: the option of ``python -m benchmarks.chooser_times`` that measures the row.
    """
    times = {name: us for name, us in row["us"].items() if name != JNP and name.startswith(family)}
    chosen = _core.select(asked(row), family)
    assert chosen in times, f"{chosen} was not measured: python -m benchmarks.chooser_times {again} measures again"
    return times[chosen] / min(times.values())
