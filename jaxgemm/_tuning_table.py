"""A tuning table as a file: its schema, strict reading row by row, and writing in one step.

The file is JSON of one device, one row a line. Nothing of it is trusted: what is not as it should be is left out.
"""

import dataclasses
import functools
import json
import os
import reprlib
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxgemm._files import dumps, replace_text
from jaxgemm._native import _core

SCHEMA = 2
LAYOUTS = ("NN", "NT", "TN", "TT")

_MAX_BYTES = 16 * 2**20
_MAX_SIZE = 2**40
_MAX_US = 1e12


class TableError(ValueError):
    """A file is no tuning table; the message says why."""


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """The problem that a row answers: dense matrices, a batch of them one after the other.

    The epilogue is none of it: it costs every kernel the same.
    """

    lhs_dtype: str
    rhs_dtype: str
    out_dtype: str
    precision: str
    layout: str
    batch: int
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        dtype = self.lhs_dtype if self.lhs_dtype == self.rhs_dtype else f"{self.lhs_dtype},{self.rhs_dtype}"
        out = f" -> {self.out_dtype}" if self.out_dtype != self.lhs_dtype else ""
        batch = f"{self.batch}x" if self.batch > 1 else ""
        highest = " highest" if self.precision == "highest" else ""
        return f"{dtype}{out} {batch}{self.m}x{self.n}x{self.k} {self.layout}{highest}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was measured: the kernel to run, the one that the model chose, and the microseconds of each.

    ``jax_us`` are those of ``jax.lax.dot_general`` on the same operands; None where that was not measured.
    """

    kernel: str
    us: float
    model_kernel: str
    model_us: float
    jax_us: float | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """One file: what it was measured on, and what ``faults`` it has; they are not among the entries.

    ``source_hash`` is that of the kernels' sources, as the compiled module knows it.
    """

    device: str
    jaxgemm: str
    source_hash: str
    jax: str
    driver: str
    entries: Mapping[Key, Entry]
    faults: tuple[str, ...] = ()


_HEADER = ("device", "jaxgemm", "source_hash", "jax", "driver")
_KEY_FIELDS = tuple(field.name for field in dataclasses.fields(Key))
_ENTRY_FIELDS = tuple(field.name for field in dataclasses.fields(Entry))
_ROW_FIELDS = _KEY_FIELDS + _ENTRY_FIELDS


def _check(good: bool, what: str, value: Any) -> None:
    if not good:
        raise TableError(f"{what} is {reprlib.repr(value)}")


@functools.cache
def _names() -> Mapping[str, Collection[str]]:
    """The values that a row's fields of text may have."""
    kernels, dtypes = {info.name for info in _core.kernels()}, _core.dtypes()
    names = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), dtypes) | dict.fromkeys(
        ("kernel", "model_kernel"), kernels
    )
    return names | {"precision": _core.precisions(), "layout": LAYOUTS}


def _parse_row(row: Any) -> tuple[Key, Entry]:
    _check(isinstance(row, dict), "it", row)
    _check(sorted(row) == sorted(_ROW_FIELDS), "the list of its fields", list(row))
    for field, known in _names().items():
        unknown = f"{field}, none that this build has,"
        _check(isinstance(row[field], str) and row[field] in known, unknown, row[field])
    for field in ("batch", "m", "n", "k"):
        _check(type(row[field]) is int and 1 <= row[field] <= _MAX_SIZE, field, row[field])
    for field in ("us", "model_us", "jax_us"):
        us = row[field]
        positive = type(us) in (int, float) and 0 < us <= _MAX_US  # NaN and infinity are not
        _check(positive or (field == "jax_us" and us is None), field, us)
    same = row["kernel"] == row["model_kernel"]
    fits = row["us"] == row["model_us"] if same else row["us"] <= row["model_us"]
    _check(fits, f"us, which does not fit model_us={row['model_us']},", row["us"])
    return Key(*(row[f] for f in _KEY_FIELDS)), Entry(*(row[f] for f in _ENTRY_FIELDS))


def _no_constant(name: str) -> Any:
    raise TableError(f"holds {name}, which is no number")


def parse(content: bytes) -> Table:
    """The table that a file holds; rows that are wrong are left out and reported as ``faults``.

    Raises:
      TableError: the file is not JSON of this schema.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_no_constant)
    except TableError:
        raise
    except (ValueError, RecursionError) as error:
        raise TableError(f"is not JSON: {reprlib.repr(str(error))}") from None
    if not isinstance(document, dict) or sorted(document) != sorted(["schema", *_HEADER, "rows"]):
        raise TableError(f"is no object of the fields schema, {', '.join(_HEADER)} and rows")
    if type(document["schema"]) is not int or document["schema"] != SCHEMA:
        raise TableError(f"has schema {reprlib.repr(document['schema'])}, this jaxgemm reads {SCHEMA}")
    if not all(isinstance(document[name], str) for name in _HEADER):
        raise TableError(f"has a header that is not text: {', '.join(_HEADER)}")
    if not isinstance(document["rows"], list):
        raise TableError("has rows that are no list")
    entries: dict[Key, Entry] = {}
    faults = []
    for number, row in enumerate(document["rows"], 1):
        try:
            key, entry = _parse_row(row)
            _check(key not in entries, "its problem, which an earlier row has,", str(key))
        except TableError as error:
            faults.append(f"row {number}: {error}")
        else:
            entries[key] = entry
    header = {name: document[name] for name in _HEADER}
    return Table(**header, entries=entries, faults=tuple(faults))


def read(path: Path) -> Table:
    """Reads and checks a table.

    Raises:
      FileNotFoundError: there is none.
      TableError: the file cannot be read, is too large, or is no table.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # opening a pipe would wait for a writer

    try:
        with open(path, "rb", opener=opener) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TableError("is no regular file")
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES:
        raise TableError(f"is larger than {_MAX_BYTES} bytes")
    return parse(content)


def write(path: Path, table: Table) -> None:
    """Writes a table in one step, one row a line, rows in the order of their problems.

    Raises:
      OSError: the file or its folder cannot be written.
    """
    document: dict[str, Any] = {"schema": SCHEMA, **{name: getattr(table, name) for name in _HEADER}}
    rows = sorted(table.entries.items())
    document["rows"] = [dataclasses.asdict(key) | dataclasses.asdict(entry) for key, entry in rows]
    replace_text(path, dumps(document))


def merge(path: Path, table: Table) -> Table:
    """Writes ``table`` and, of problems that it does not have, the rows that ``path`` holds; returns what was written.

    Rows of another device or of other kernels, and a file that is no table, are replaced.

    Raises:
      OSError: the file or its folder cannot be written.
    """
    try:
        old = read(path)
    except (FileNotFoundError, TableError):
        old = None
    if old is not None and not other_device(old, table.device) and not other_kernels(old):
        table = dataclasses.replace(table, entries={**old.entries, **table.entries})
    write(path, table)
    return table


def other_device(table: Table, device: str) -> str:
    """Says so if a table is not about this device, else ""."""
    return "" if table.device == device else f"was measured on {reprlib.repr(table.device)}, not on {device}"


def other_kernels(table: Table) -> str:
    """Says so if a table is not about the kernels of this build, else ""."""
    if table.source_hash == _core.source_hash():
        return ""
    return f"was measured with the kernels of another build, of jaxgemm {reprlib.repr(table.jaxgemm)}"
