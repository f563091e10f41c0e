"""jaxgemm/_tuning.py: which tables of measured winners count, and for which problems."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import _tune, _tuning, _tuning_table
from jaxgemm._choose import Request, choose, native_problem, tuning_key
from jaxgemm._native import _core
from tests.helpers import cuda_text, problem, request, struct
from tests.tuning_data import (
    ABLE,
    ASKED,
    BF16,
    FAMILY,
    FIRST,
    H200,
    MODEL,
    OTHER_FAMILY,
    SECOND,
    SIZE,
    Machine,
    attach,
    document,
    put,
    row,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    attach(monkeypatch, tmp_path)
    monkeypatch.setattr(_tuning, "_SHIPPED", tmp_path / "shipped")
    yield Machine(tmp_path)
    _tuning.forget()


def square(**kwargs: Any) -> Request:
    return request(struct((SIZE, SIZE), jnp.bfloat16), struct((SIZE, SIZE), jnp.bfloat16), **kwargs)


def chosen(asked: Request | None = None, kernel: str | None = None, sm: int = 90) -> str | None:
    return choose(asked or square(), kernel, sm).kernel


@pytest.mark.parametrize(
    ("setting", "user", "shipped", "expected"),
    [
        (None, FIRST, SECOND, FIRST),
        ("on", FIRST, SECOND, FIRST),
        ("on", None, SECOND, SECOND),
        ("on", None, None, MODEL),
        ("on", MODEL, SECOND, MODEL),
        ("shipped", FIRST, SECOND, SECOND),
        ("shipped", FIRST, None, MODEL),
        ("off", FIRST, SECOND, MODEL),
    ],
)
def test_precedence(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, setting: str | None, user: Any, shipped: Any, expected: str
) -> None:
    if setting is not None:
        monkeypatch.setenv("JAXGEMM_TUNING", setting)
    machine.give(*(name and document([row(name)]) for name in (user, shipped)))
    assert chosen() == expected


def test_a_caller_comes_before_tables(machine: Machine) -> None:
    machine.give(document([row(FIRST)]), document([row(OTHER_FAMILY)]))
    assert chosen(kernel=MODEL) == MODEL
    assert choose(square(), MODEL, 90).reason == "named by the caller"
    assert chosen(kernel=FAMILY) == FIRST
    assert chosen(kernel=OTHER_FAMILY.split(":")[0]) == OTHER_FAMILY, "the user's row is of another family"
    other = next(name for name in ABLE if name.split(":")[0] == OTHER_FAMILY.split(":")[0] and name != OTHER_FAMILY)
    machine.give(document([row(FIRST)]), document([row(other)]))
    assert chosen(kernel=OTHER_FAMILY.split(":")[0]) == other
    wmma = choose(square(), "wmma_tiled", 90)
    assert wmma.kernel is not None and wmma.kernel.startswith("wmma_tiled:")


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return struct(shape, jnp.bfloat16)


SAME = {
    "matrices": square(),
    "bias": square(has_bias=True),
    "activation": square(activation="gelu_tanh"),
    "rows in two dimensions": request(bf16(2, 256, SIZE), bf16(SIZE, SIZE), (((2,), (0,)), ((), ()))),
    "sums over two dimensions": request(bf16(SIZE, 2, 256), bf16(2, 256, SIZE), (((1, 2), (0, 1)), ((), ()))),
    "a batch of one": request(bf16(1, SIZE, SIZE), bf16(1, SIZE, SIZE), (((2,), (1,)), ((0,), (0,)))),
}
DIFFERENT = {
    "m": request(bf16(513, SIZE), bf16(SIZE, SIZE)),
    "n": request(bf16(SIZE, SIZE), bf16(SIZE, 511)),
    "k": request(bf16(SIZE, 256), bf16(256, SIZE)),
    "NT": request(bf16(SIZE, SIZE), bf16(SIZE, SIZE), (((1,), (1,)), ((), ()))),
    "TN": request(bf16(SIZE, SIZE), bf16(SIZE, SIZE), (((0,), (0,)), ((), ()))),
    "float16": request(struct((SIZE, SIZE), jnp.float16), struct((SIZE, SIZE), jnp.float16)),
    "float32 result": square(preferred_element_type=jnp.float32),
    "precision": square(precision=(jax.lax.Precision.HIGHEST,) * 2),
    "batch": request(bf16(2, SIZE, SIZE), bf16(2, SIZE, SIZE), (((2,), (1,)), ((0,), (0,)))),
    "symbolic": request(struct((*jax.export.symbolic_shape("m"), SIZE), jnp.bfloat16), bf16(SIZE, SIZE)),
    "empty": request(bf16(0, SIZE), bf16(SIZE, SIZE)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_problem_in_other_words(machine: Machine, name: str) -> None:
    assert chosen(SAME[name]) == MODEL
    machine.give(document([row()]))
    assert chosen(SAME[name]) == FIRST


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_problems_are_the_models(machine: Machine, name: str) -> None:
    without = choose(DIFFERENT[name], None, 90)
    # A symbolic dimension counts as 127 where it is asked what a kernel can take: no row may answer for that.
    rows = [row(kernel, m=m) for kernel, m in ((FIRST, SIZE), (FIRST if without.kernel != FIRST else SECOND, 127))]
    machine.give(document(rows))
    assert choose(DIFFERENT[name], None, 90) == without
    assert chosen() == FIRST


BATCHES = {
    "one after the other": (bf16(4, 64, 32), bf16(4, 32, 48), (((2,), (1,)), ((0,), (0,)))),
    "shared rhs, rows between": (bf16(64, 4, 32), bf16(32, 48), (((2,), (0,)), ((), ()))),
    "rows of a batch apart": (bf16(64, 4, 32), bf16(4, 32, 48), (((2,), (1,)), ((1,), (0,)))),
    "shared lhs": (bf16(64, 32), bf16(4, 32, 48), (((1,), (1,)), ((), ()))),
}


@pytest.mark.parametrize("name", BATCHES)
def test_keys_of_batches(name: str) -> None:
    """Only matrices that follow one another densely are what was measured."""
    asked = request(*BATCHES[name])
    native = native_problem(asked, 90)
    key = tuning_key(asked, native)
    if name == "one after the other":
        assert key is not None and (key.batch, key.m, key.n, key.k) == (4, 64, 48, 32)
    elif name == "shared rhs, rows between":
        assert key is not None and (key.batch, key.m) == (1, 256), "that is one matrix"
    else:
        assert native.batch == 4
        assert key is None


@pytest.mark.parametrize("layout", _tuning_table.LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 64, 48, 32), (3, 64, 48, 32), (1, 7, 9, 11), (5, 2, 3, 2)])
def test_keys_of_measured_problems(layout: str, sizes: tuple[int, int, int, int]) -> None:
    key = _tuning_table.Key("float32", "float32", "float32", "highest", layout, *sizes)
    assert _tune.canonical(key, 90) == key
    batch, m, n, k = sizes
    native = problem(m, n, k, batch=batch, layout=layout)
    assert _tuning.key_of(native, ("float32",) * 3, "highest") == key


def test_a_single_row_has_one_layout() -> None:
    keys = {
        _tune.canonical(_tuning_table.Key("float16", "float16", "float16", "default", layout, 1, 1, 64, 32), 90)
        for layout in ("NN", "TN")
    }
    assert [key.layout for key in keys] == ["NN"]


@pytest.mark.parametrize("gpu", [None, (90, "NVIDIA H100 80GB HBM3"), (80, "NVIDIA A100-SXM4-40GB")])
def test_other_gpus_have_other_tables(machine: Machine, monkeypatch: pytest.MonkeyPatch, gpu: Any) -> None:
    machine.give(document([row()]), document([row()]))
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: gpu)
    assert chosen() == MODEL


def test_a_table_is_not_for_another_architecture(machine: Machine) -> None:
    sm80 = _core.select(problem(SIZE, SIZE, SIZE, **BF16, sm=80))
    other = next(name for name in ABLE if name.split(":")[0] == sm80.split(":")[0] and name != sm80)
    machine.give(document([row(other)]))
    assert chosen(sm=90) == other
    assert chosen(sm=80) == sm80


def test_a_kernel_that_cannot_run_the_problem_is_passed_over(machine: Machine) -> None:
    naive = next(info.name for info in _core.kernels() if info.family == "naive")
    assert _core.why_not(naive, ASKED)
    machine.give(document([row(naive)]), document([row(SECOND)]))
    assert chosen() == SECOND


def test_a_row_of_another_favourite_has_no_say(machine: Machine) -> None:
    """It was measured when the model chose otherwise: what it prefers now may be a kernel that there was not."""
    before = row(FIRST, model_kernel=SECOND)
    machine.give(document([before]), document([before]))
    assert chosen() == MODEL
    assert chosen(kernel=FAMILY) == MODEL
    machine.give(document([before]), document([row(SECOND)]))
    assert chosen() == SECOND


def test_where_several_processes_share_a_program_only_the_shipped_table_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.give(document([row(FIRST)]), document([row(SECOND)]))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert chosen() == SECOND


def test_a_home_without_a_cache(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "cache"):  # by the XDG rule a relative folder does not count
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert _tuning.user_path(H200) == tmp_path / "home/.cache/jaxgemm/tuning/nvidia-h200.json"

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    machine.give(shipped=document([row(SECOND)]))
    assert _tuning.user_path(H200) is None
    assert chosen() == SECOND


def test_explain_says_who_measured(machine: Machine) -> None:
    operands = bf16(SIZE, SIZE), bf16(SIZE, SIZE)
    machine.give(document([row(FIRST)]))
    said = jaxgemm.explain(*operands)
    assert said.kernel == FIRST
    assert said.reason == f"measured the fastest on {H200} by `python -m jaxgemm tune`"
    assert f"  runs {FIRST}: measured the fastest on {H200} by `python -m jaxgemm tune`\n" in str(said)
    assert f"  {MODEL}: could run, in " in str(said)
    machine.give(document([row(MODEL)]))
    assert (
        jaxgemm.explain(*operands).reason == f"measured within 4% of the fastest on {H200} by `python -m jaxgemm tune`"
    )
    machine.give(document([]), document([row(SECOND)]))
    assert jaxgemm.explain(*operands).reason == f"measured the fastest on {H200} by the table that jaxgemm ships"
    machine.give(document([]), document([]))
    assert "measured" not in jaxgemm.explain(*operands).reason


def test_the_lowered_program_has_the_measured_kernel(machine: Machine) -> None:
    operands = bf16(SIZE, SIZE), bf16(SIZE, SIZE)
    machine.give(document([row(OTHER_FAMILY)]))
    assert f'kernel = "{OTHER_FAMILY}"' in cuda_text(jaxgemm.matmul, *operands)


def told(what: Callable[[], Any]) -> list[str]:
    """The tuning warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        what()
    assert all(issubclass(warning.category, jaxgemm.TuningWarning) for warning in caught), caught
    return [str(warning.message) for warning in caught]


def test_a_setting_that_is_none_is_said_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.give(document([row()]))
    for value in ("maybe", "", "OFF", "x" * 100_000):
        monkeypatch.setenv("JAXGEMM_TUNING", value)
        _tuning.forget()
        (text,) = told(lambda: [chosen() for _ in range(3)])
        assert text.startswith("JAXGEMM_TUNING=") and len(text) < 200
        assert text.endswith("is none of 'on', 'shipped', 'off': 'on' is used")
        assert chosen() == FIRST


BROKEN = {
    "empty": b"",
    "no text": bytes(range(256)),
    "cut": json.dumps(document([row()])).encode()[:-40],
    "a list": [],
    "a number": 7,
    "null": None,
    "no rows": {name: value for name, value in document([]).items() if name != "rows"},
    "a field too many": document([], more=1),
    "another schema": document([row()], schema=1),
    "a schema of the wrong type": document([row()], schema=True),
    "a header of the wrong type": document([row()], device=None),
    "rows of the wrong type": document([]) | {"rows": {"0": row()}},
    "another device": document([row()], device="NVIDIA H100"),
    "other kernels": document([row()], source_hash="0" * 64),
    "NaN": json.dumps(document([row(us=float("nan"))])).encode(),
    "deep": b"[" * 200_000,
    "a number of many digits": b'{"schema": ' + b"9" * 10_000 + b"}",
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
    "too large": json.dumps(document([row()])).encode() + b" " * (16 * 2**20),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_reported_once_and_ignored(machine: Machine, name: str) -> None:
    content = BROKEN[name]
    machine.give(content if isinstance(content, bytes) else json.dumps(content).encode(), document([row(SECOND)]))
    (text,) = told(lambda: [chosen() for _ in range(3)])
    assert text.startswith(f"jaxgemm's tuning table {machine.user}: ")
    assert text.endswith(". It is ignored. Delete it, or measure again with `python -m jaxgemm tune`.")
    assert len(text) < len(str(machine.user)) + 300
    assert chosen() == SECOND
    assert machine.user.exists(), "it is the user's"


def test_a_named_kernel_reads_no_table(machine: Machine) -> None:
    machine.give(user=b"?")
    assert told(lambda: chosen(kernel=FIRST)) == []
    assert len(told(chosen)) == 1


@pytest.mark.parametrize("place", ["folder", "pipe", "unreadable", "loop", "file in a folder's place"])
def test_what_is_no_file_is_reported_once_and_ignored(machine: Machine, place: str) -> None:
    machine.give(shipped=document([row(SECOND)]))
    machine.user.parent.mkdir(parents=True)
    if place == "folder":
        machine.user.mkdir()
    elif place == "pipe":
        os.mkfifo(machine.user)
    elif place == "loop":
        machine.user.symlink_to(machine.user)
    elif place == "file in a folder's place":
        machine.user.parent.rmdir()
        machine.user.parent.write_text("")
    else:
        put(machine.user, document([row()])).chmod(0)
        if os.access(machine.user, os.R_OK):  # root may read everything
            machine.user.unlink()
            machine.user.symlink_to("/proc/self/mem")
    (text,) = told(lambda: [chosen() for _ in range(3)])
    assert str(machine.user) in text
    assert "It is ignored. Delete it" in text
    assert chosen() == SECOND


WRONG_ROWS = {
    "no object": 5,
    "a field too few": {name: value for name, value in row().items() if name != "us"},
    "a field too many": row(more=1),
    "an unknown kernel": row("wgmma:1x1x1"),
    "a kernel of another type": row() | {"kernel": ["a"]},
    "an unknown kernel of the model": row(model_kernel="cublas"),
    "an unknown dtype": row(lhs_dtype="float17"),
    "an unknown result dtype": row(out_dtype=""),
    "an unknown precision": row(precision="low"),
    "an unknown layout": row(layout="NX"),
    "a size of 0": row(m=0),
    "a negative size": row(n=-512),
    "a size that is no integer": row(k=512.0),
    "a size that is a truth value": row(batch=True),
    "an absurd size": row(m=2**41),
    "a size of many digits": row(m=10**4000),
    "a time of 0": row(us=0),
    "a negative time": row(us=-1.0),
    "a time of many digits": row(us=10**400),
    "a model's time of many digits": row(model_us=10**309),
    "a time that is text": row(us="10"),
    "JAX's time of 0": row(jax_us=0.0),
    "a time of JAX that is text": row(jax_us=""),
    "slower than the model's": row(us=13.0),
    "two times of one kernel": row(MODEL, us=9.0),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_wrong_row_is_reported_once_and_ignored(machine: Machine, name: str) -> None:
    other = request(bf16(256, SIZE), bf16(SIZE, SIZE))
    machine.give(document([WRONG_ROWS[name], row(FIRST, m=256)]), document([row(SECOND)]))
    (text,) = told(lambda: [chosen() for _ in range(3)])
    assert text.startswith(f"jaxgemm's tuning table {machine.user}: row 1: ")
    assert text.endswith(". These rows are ignored. Delete it, or measure again with `python -m jaxgemm tune`.")
    assert len(text) < len(str(machine.user)) + 600
    assert chosen() == SECOND
    assert chosen(other) == FIRST, "the other row counts"


def test_an_infinite_time_in_the_file_is_no_number(machine: Machine) -> None:
    machine.give(json.dumps(document([row()])).replace("12.5", "1e999").encode())
    (text,) = told(chosen)
    assert "row 1: model_us is inf" in text
    assert chosen() == MODEL


def test_many_wrong_rows_are_one_warning(machine: Machine) -> None:
    machine.give(document([row(us=-1)] * 10 + [row(FIRST), row(SECOND)]))
    (text,) = told(chosen)
    assert text.count("us is -1") == 3
    assert "; 8 more rows. These rows" in text, "the problem's second row is the eleventh"
    assert chosen() == FIRST


def test_a_broken_shipped_table_has_another_remedy(machine: Machine) -> None:
    machine.give(shipped=b"?")
    (text,) = told(chosen)
    assert str(machine.shipped) in text
    assert text.endswith("It is ignored. Install jaxgemm again.")


def test_a_shipped_table_may_be_older_than_the_kernels(machine: Machine) -> None:
    machine.give(shipped=document([row(SECOND)], source_hash=""))
    assert chosen() == SECOND
