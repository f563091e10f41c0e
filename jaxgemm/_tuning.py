"""Tuning tables: measured winners, which correct the chooser's model, and which of them count.

A table says nothing but which of several able kernels is the fastest: the chooser asks the kernel itself whether it can
run, so that a wrong table costs time and never a result. The user's own table, which ``python -m jaxgemm tune`` writes,
comes before the one that is part of the package. Nothing that such a file holds raises: what is wrong with it is
reported once, as a :class:`TuningWarning`, and ignored.
"""

import functools
import os
import reprlib
import warnings
from collections.abc import Iterable
from pathlib import Path

import jax

from jaxgemm._files import device_slug
from jaxgemm._native import _core
from jaxgemm._options import TUNING, current
from jaxgemm._tuning_table import Entry, Key, Table, TableError, other_device, other_kernels, read

MARGIN = 1.04
"""The model's choice stays unless it takes longer than the fastest by this factor: what gains less in one run has lost
in others.
"""
SETTING = "JAXGEMM_TUNING"

_SHOWN_FAULTS = 3
_SHIPPED = Path(__file__).parent / "tuning"
_TUNE_AGAIN = "Delete it, or measure again with `python -m jaxgemm tune`."
_INSTALL_AGAIN = "Install jaxgemm again."


class TuningWarning(UserWarning):
    """Said once about a tuning table, a row of one, or a value of ``JAXGEMM_TUNING``, that is ignored."""


def key_of(problem: _core.Problem, dtypes: tuple[str, str, str], precision: str) -> Key | None:
    """The key of a problem as kernels see it; None where tables have no say: it is empty, or an operand is not dense.

    Args:
      dtypes: names of the dtypes of lhs, rhs and out.
      precision: ours, "default" or "highest".
    """
    batch, m, n, k, layout = problem.batch, problem.m, problem.n, problem.k, problem.layout
    if 0 in (batch, m, n, k):
        return None

    def strides(rows: int, cols: int, transposed: bool) -> tuple[int, int]:
        return rows * cols if batch > 1 else 0, rows if transposed else cols

    dense = (strides(m, k, layout[0] == "T"), strides(k, n, layout[1] == "T"), strides(m, n, False))
    if (problem.lhs_stride, problem.rhs_stride, problem.out_stride) != dense:
        return None
    return Key(*dtypes, precision, layout, batch, m, n, k)


def user_path(device: str) -> Path | None:
    """The user's table of a device; None where there is no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"  # the XDG rule for relative ones
    except RuntimeError:
        return None
    return folder / "jaxgemm" / "tuning" / f"{device_slug(device)}.json"


def shipped_path(device: str) -> Path:
    """The table of a device that is part of the package, if there is one."""
    return _SHIPPED / f"{device_slug(device)}.json"


@functools.cache
def _of_environment() -> str:
    value = os.environ.get(SETTING, TUNING[0])
    if value in TUNING:
        return value
    legal = ", ".join(map(repr, TUNING))
    warnings.warn(
        f"{SETTING}={reprlib.repr(value)} is none of {legal}: {TUNING[0]!r} is used", TuningWarning, stacklevel=2
    )
    return TUNING[0]


def setting() -> str:
    """Which tables count, by ``jaxgemm.options`` or else the environment variable ``JAXGEMM_TUNING``: all ("on"),
    "shipped" or none ("off").
    """
    return current().tuning or _of_environment()


def _load(path: Path, device: str, *, shipped: bool) -> Table | None:
    """A table that counts; what is wrong with the file is reported."""
    remedy = _INSTALL_AGAIN if shipped else _TUNE_AGAIN
    try:
        table = read(path)
    except FileNotFoundError:
        return None
    except TableError as error:
        table, faults = None, [str(error)]
    else:
        faults = list(table.faults[:_SHOWN_FAULTS])
        if len(table.faults) > _SHOWN_FAULTS:
            faults.append(f"{len(table.faults) - _SHOWN_FAULTS} more rows")
        # Of what ships, rows that were measured before a kernel was changed are still the best that is known.
        if reason := other_device(table, device) or ("" if shipped else other_kernels(table)):
            table, faults = None, [reason]
    if faults:
        ignored = "It is ignored." if table is None else "These rows are ignored."
        text = f"jaxgemm's tuning table {path}: {'; '.join(faults)}. {ignored} {remedy}"
        warnings.warn(text, TuningWarning, stacklevel=2)
    return table


@functools.cache
def _tables(device: str, mode: str) -> tuple[tuple[Table, str], ...]:
    """The tables that count for a device under a setting, the one to ask first first, each with who says so."""
    found = []
    # The processes of one program must lower the same program: what differs between machines has no say there.
    path = user_path(device) if mode == "on" and jax.process_count() == 1 else None
    if path is not None:
        found.append((_load(path, device, shipped=False), "by `python -m jaxgemm tune`"))
    if mode != "off":
        found.append((_load(shipped_path(device), device, shipped=True), "by the table that jaxgemm ships"))
    return tuple((table, source) for table, source in found if table is not None)


def find(key: Key, device: str) -> Iterable[tuple[Entry, str]]:
    """What the tables of a device say of a problem, the one that counts most first, each with its reason in words."""
    for table, source in _tables(device, setting()):
        entry = table.entries.get(key)
        if entry is not None:
            within = f"within {MARGIN - 1:.0%} of " if entry.kernel == entry.model_kernel else ""
            yield entry, f"measured {within}the fastest on {device} {source}"


def forget() -> None:
    """Lets the setting and the tables be read again: they are read once per process."""
    _of_environment.cache_clear()
    _tables.cache_clear()
