"""Tuning tables, and a GPU whose kernels multiply on the CPU, for the tests."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgemm import _tune, _tune_command, _tuning, _tuning_table
from jaxgemm._native import _core
from jaxgemm._timing import Timing
from jaxgemm._tuning_table import Key
from tests.helpers import problem

H200 = "NVIDIA H200"

# One problem, the model's choice of kernel for it, and others that can run it.
SIZE = 512
BF16 = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16"}
ASKED = problem(SIZE, SIZE, SIZE, **BF16)
MODEL = _core.select(ASKED)
FAMILY = MODEL.split(":")[0]
ABLE = [info.name for info in _core.kernels() if info.stages > 2 and not _core.why_not(info.name, ASKED)]
FIRST, SECOND = [name for name in ABLE if name.startswith(FAMILY + ":") and name != MODEL][:2]
OTHER_FAMILY = next(name for name in ABLE if not name.startswith(FAMILY + ":"))


def row(kernel: str = FIRST, **changes: Any) -> dict[str, Any]:
    """A row of a table's file, about that problem."""
    measured = {"kernel": kernel, "us": 10.0, "model_kernel": MODEL, "model_us": 12.5 if kernel != MODEL else 10.0}
    measured["jax_us"] = 11.0
    key = {**BF16, "precision": "default", "layout": "NN", "batch": 1, "m": SIZE, "n": SIZE, "k": SIZE}
    return key | measured | changes


def document(rows: Sequence[Any], **changes: Any) -> dict[str, Any]:
    """A table's file."""
    header = {
        "schema": _tuning_table.SCHEMA,
        "device": H200,
        "jaxgemm": "1.2.3",
        "source_hash": _core.source_hash(),
        "jax": "0",
        "driver": "0",
    }
    return header | {"rows": list(rows)} | changes


def put(path: Path, content: Any) -> Path:
    """Writes bytes, or what JSON makes of ``content``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


# A problem that the fake kernels multiply, the model's choice for it, and all that compete.
TUNED = Key("bfloat16", "bfloat16", "bfloat16", "default", "NN", 1, 48, 64, 80)
TUNED_MODEL, CONTENDERS = _tune.contenders(TUNED, 90)


def one_off(out: jax.Array) -> jax.Array:
    """A product with one wrong element."""
    return out.at[7, 5].add(1.0)


class Machine:
    """A machine with an H200, whose user and whose jaxgemm have no tables yet."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "cache" / "jaxgemm" / "tuning" / "nvidia-h200.json"
        self.shipped = folder / "shipped" / "nvidia-h200.json"

    def give(self, user: Any = None, shipped: Any = None) -> None:
        for path, content in ((self.user, user), (self.shipped, shipped)):
            if content is not None:
                put(path, content)
        _tuning.forget()


class Gpu:
    """A GPU whose kernels multiply on the CPU: their times, and what they do wrong."""

    def __init__(self) -> None:
        self.us: dict[str, float] = {}
        self.jax_fault: Exception | None = None
        self.wrong: dict[str, Any] = {}
        self.source = "cupti"
        self.timed: list[list[str]] = []
        self.called: list[tuple[Key, str]] = []

    def kernel_function(self, key: Key, name: str) -> Any:
        self.called.append((key, name))
        fault = self.wrong.get(name)
        if isinstance(fault, Exception):
            raise fault
        dot = functools.partial(
            jax.lax.dot_general,
            dimension_numbers=_tune.dimension_numbers(key),
            preferred_element_type=jnp.dtype(key.out_dtype),
        )
        return dot if fault is None else lambda lhs, rhs: fault(dot(lhs, rhs))

    def jax_function(self, key: Key) -> Any:
        def dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            if self.jax_fault is not None:
                raise self.jax_fault
            return lhs

        return dot

    def compare(self, fns: Mapping[str, Any], arg_sets: Sequence[Any], **plan: Any) -> dict[str, Timing]:
        self.timed.append(list(fns))
        return {name: Timing(self.us.get(name, 50.0), 1, 2, ("k",), 20, self.source) for name in fns}  # type: ignore[arg-type]


def attach(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Attaches an H200, whose user has no table yet and a cache below ``folder``."""
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("JAXGEMM_TUNING")
    _tuning.forget()


def attach_fake(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Gpu:
    """The same, with fake kernels and a fake timer for the tuner."""
    attach(monkeypatch, folder)
    fake = Gpu()
    monkeypatch.setattr(_tune, "kernel_function", fake.kernel_function)
    monkeypatch.setattr(_tune, "jax_function", fake.jax_function)
    monkeypatch.setattr(_tune, "compare", fake.compare)
    monkeypatch.setattr(_tune, "rotating_arg_sets", lambda make_args, nbytes: [make_args(0), make_args(1)])
    monkeypatch.setattr(_tune_command, "_gpu", lambda: (90, H200))
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # compiling the references again takes long
    return fake
