"""Calls of the FFI handler's checks on the host, good and corrupted: a program that prints one JSON line per call.

The tests run it in a process of its own, so that a crash of the handler would be a failed test and not the end of all.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxgemm._choose import NO_SPLIT
from jaxgemm._native import GEMM_TARGET, _core

CHECK_TARGET = f"{GEMM_TARGET}_check"
GROUPS = ("order", "batch", "rows", "cols")
Call = dict[str, Any]
"""operands and results as [(shape, dtype)], and the attributes."""


def plain_dims() -> dict[str, np.ndarray]:
    """A row-major matrix."""
    return {name: np.array(dims, np.int64) for name, dims in zip(GROUPS, ([0, 1], [], [0], [1]), strict=True)}


def good_call(kernel: str = "naive:32x32x1", dtype: str = "float32", workspace: int = 0) -> Call:
    """4x5 times 5x6."""
    return {
        "operands": [((4, 5), dtype), ((5, 6), dtype)],
        "results": [((4, 6), dtype)] + ([((workspace,), "uint8")] if workspace else []),
        "attributes": {
            "sm": 90, "kernel": kernel, "precision": "default", "activation": "none",
            "has_alpha": False, "split": np.array(NO_SPLIT),
            "lhs": plain_dims(), "rhs": plain_dims(), "out": plain_dims(),
        },
    }  # fmt: skip


def padded_call() -> Call:
    """A call that needs a workspace."""
    dims = [_core.OperandDims([0, 1], [], [0], [1])] * 3
    asked = _core.Problem(
        [4, 5],
        dims[0],
        [5, 6],
        dims[1],
        [4, 6],
        dims[2],
        "bfloat16",
        "bfloat16",
        "bfloat16",
        "default",
        "none",
        False,
        False,
        90,
    )
    return good_call("wmma_naive:16x16x16", "bfloat16", _core.workspace_bytes("wmma_naive:16x16x16", asked))


def unaligned_call() -> Call:
    """Operands that would be copied, were there a workspace."""
    call = good_call("mma_multistage:64x64x64", "bfloat16")
    return call | {
        "operands": [((701, 703), "bfloat16"), ((703, 705), "bfloat16")],
        "results": [((701, 705), "bfloat16")],
    }


def split_call(whole: int, splits: int, family: str = "wgmma") -> Call:
    """3 x 2 tiles of 64 x 128 and five k-tiles of 64, in operands that no kernel copies."""
    call = good_call(f"{family}:64x128x64", "bfloat16", 2**20)
    call["operands"] = [((192, 320), "bfloat16"), ((320, 256), "bfloat16")]
    call["results"][0] = ((192, 256), "bfloat16")
    call["attributes"]["split"] = np.array([whole, splits])
    return call


def run(call: Call) -> str:
    """ "" if the handler of dense operands accepts the call, else its error."""
    return run_on(CHECK_TARGET, call)


def run_on(target: str, call: Call) -> str:
    """The same of another handler."""
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call["results"]]
    operands = [jnp.ones(shape, dtype) for shape, dtype in call["operands"]]
    # A primitive of its own, as jax.ffi.ffi_call takes no arrays within dictionaries.
    primitive = Primitive("check")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_: [jax.core.ShapedArray(r.shape, r.dtype) for r in results])
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True)
    mlir.register_lowering(primitive, lambda ctx, *xs: rule(ctx, *xs, **call["attributes"]))
    try:
        jax.block_until_ready(jax.jit(lambda *xs: primitive.bind(*xs))(*operands))
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def listed() -> Iterator[tuple[str, Call]]:
    """Every check of the handler, by name."""

    def changed(change: Callable[[Call], Any], base: Callable[[], Call] = good_call) -> Call:
        call = base()
        change(call)
        return call

    def attribute(**kwargs: Any) -> Call:
        return changed(lambda call: call["attributes"].update(kwargs))

    def dims(operand: str, **kwargs: Sequence[int]) -> Call:
        return changed(
            lambda call: call["attributes"][operand].update({k: np.array(v, np.int64) for k, v in kwargs.items()})
        )

    def with_alpha(*operands: tuple[Sequence[int], str]) -> Call:
        call = attribute(has_alpha=True)
        call["operands"] += operands
        return call

    def batched_call(bias: tuple[Sequence[int], str]) -> Call:
        """Three times 4x5 times 5x6."""
        call = good_call()
        dims = {name: np.array(of, np.int64) for name, of in zip(GROUPS, ([0, 1, 2], [0], [1], [2]), strict=True)}
        call["operands"] = [((3, 4, 5), "float32"), ((3, 5, 6), "float32"), bias]
        call["results"] = [((3, 4, 6), "float32")]
        call["attributes"] |= {"lhs": dims, "rhs": dims, "out": dims}
        return call

    def integer_call() -> Call:
        call = good_call("mma:64x64x64", "int8")
        call["results"] = [((4, 6), "int32")]
        call["attributes"]["has_alpha"] = True
        return call

    yield "good", good_call()
    yield "good with workspace", padded_call()
    yield "good with bias", changed(lambda call: call["operands"].append(((6,), "float32")))
    yield "good with bias in 16 bits", changed(lambda call: call["operands"].append(((6,), "bfloat16")))
    yield "good with a bias for the batch", batched_call(((6,), "float32"))
    yield "good with a bias for each of the batch", batched_call(((3, 6), "float32"))
    yield "good with alpha", with_alpha(((), "float32"))
    yield "good with alpha in a vector", with_alpha(((1,), "float32"))
    yield "good with alpha and bias", with_alpha(((), "float32"), ((6,), "float32"))
    yield "kernel", attribute(kernel="fast")
    yield "family is no kernel", attribute(kernel="naive")
    yield "empty kernel", attribute(kernel="")
    yield "old GPU", attribute(sm=75)
    yield "precision", attribute(precision="medium")
    yield "activation", attribute(activation="tanh")
    yield "kernel of another dtype", attribute(kernel="wmma_naive:16x16x16")
    yield "kernel is a number", attribute(kernel=3)
    yield "dims is a number", attribute(lhs=3)
    yield "dims of 32 bits", attribute(lhs={k: v.astype(np.int32) for k, v in plain_dims().items()})
    yield "dims lack a group", attribute(lhs={k: v for k, v in plain_dims().items() if k != "rows"})
    yield "no kernel", changed(lambda call: call["attributes"].pop("kernel"))
    yield "no dims", changed(lambda call: call["attributes"].pop("out"))
    yield "order too large", dims("lhs", order=[0, 7])
    yield "order huge", dims("rhs", order=[0, 2**62])
    yield "order negative", dims("rhs", order=[-(2**63), 1])
    yield "order short", dims("lhs", order=[0])
    yield "order empty", dims("out", order=[])
    yield "order twice", dims("lhs", order=[1, 1])
    yield "dimension twice", dims("lhs", cols=[0])
    yield "dimension huge", dims("lhs", rows=[2**62])
    yield "dimension without role", dims("rhs", cols=[])
    yield "wrong K", changed(lambda call: call["operands"].__setitem__(1, ((7, 6), "float32")))
    yield "wrong M", changed(lambda call: call["results"].__setitem__(0, ((3, 6), "float32")))
    yield "wrong N", changed(lambda call: call["results"].__setitem__(0, ((4, 7), "float32")))
    yield "wrong rank", changed(lambda call: call["results"].__setitem__(0, ((24,), "float32")))
    yield "transposed out", dims("out", order=[1, 0])
    yield "dtype of lhs", changed(lambda call: call["operands"].__setitem__(0, ((4, 5), "int16")))
    yield "dtype of out", changed(lambda call: call["results"].__setitem__(0, ((4, 6), "bfloat16")))
    yield "good with K split in a cluster", split_call(0, 3)
    yield "good with K split of the last tiles", split_call(2, 5)
    yield "more splits than k-tiles", split_call(0, 6)
    yield "good with tiles to take", split_call(2, 1)
    yield "no tile left to take", split_call(6, 1)
    yield "tiles to take for CTAs that do not stay", split_call(2, 1, "mma_multistage")
    yield "all tiles whole", split_call(6, 2)
    yield "whole tiles of a kernel whose CTAs do not stay", split_call(2, 5, "mma_multistage")
    yield "negative number of whole tiles", split_call(-1, 2)
    yield "huge number of whole tiles", split_call(2**62, 2)
    yield "huge number of splits", split_call(0, 2**62)
    yield (
        "small workspace for the sums",
        changed(lambda call: call["results"].__setitem__(1, ((2**17,), "uint8")), lambda: split_call(2, 5)),
    )
    yield "split that the kernel cannot", attribute(split=np.array([0, 2]))
    yield "split left to the model", attribute(split=np.array([0, 0]))
    yield "negative split", attribute(split=np.array([0, -1]))
    yield "split of one number", attribute(split=np.array([1]))
    yield "split of 32 bits", attribute(split=np.array([0, 1], np.int32))
    yield "no split", changed(lambda call: call["attributes"].pop("split"))
    yield "no operands", changed(lambda call: call["operands"].clear())
    yield "one operand", changed(lambda call: call["operands"].pop())
    yield "four operands", changed(lambda call: call["operands"].extend([((6,), "float32")] * 2))
    yield "three results", changed(lambda call: call["results"].extend([((6,), "uint8")] * 2))
    yield "short bias", changed(lambda call: call["operands"].append(((5,), "float32")))
    yield "bias of another dtype", changed(lambda call: call["operands"].append(((6,), "int8")))
    yield "alpha announced and not there", with_alpha()
    yield "alpha there and not announced", changed(lambda call: call["operands"].append(((), "float32")))
    yield "five operands", with_alpha(((), "float32"), ((6,), "float32"), ((), "float32"))
    yield "bias before alpha", with_alpha(((6,), "float32"), ((), "float32"))
    yield "two alphas", with_alpha(((2,), "float32"))
    yield "no element in alpha", with_alpha(((0,), "float32"))
    yield "alpha of another dtype", with_alpha(((), "int32"))
    yield "alpha in half", with_alpha(((), "float16"), ((6,), "float32"))
    yield "bias for a larger batch", batched_call(((4, 6), "float32"))
    yield "bias for a smaller batch", batched_call(((2, 6), "float32"))
    yield "bias for each of the batch with another dtype", batched_call(((3, 6), "int32"))
    yield "short bias after alpha", with_alpha(((), "float32"), ((5,), "float32"))
    yield "has_alpha is a number", attribute(has_alpha=1)
    yield "no has_alpha", changed(lambda call: call["attributes"].pop("has_alpha"))
    yield "alpha of integers", changed(lambda call: call["operands"].append(((), "float32")), integer_call)
    yield "good without a workspace for copies", unaligned_call()
    yield "no workspace", changed(lambda call: call["results"].pop(), padded_call)
    yield "small workspace", changed(lambda call: call["results"].__setitem__(1, ((256,), "uint8")), padded_call)
    yield (
        "workspace of another dtype",
        changed(lambda call: call["results"].__setitem__(1, ((9999,), "float32")), padded_call),
    )
    yield "good after all", good_call()


def corrupt(call: Call, rng: np.random.Generator) -> None:
    """Changes one random thing."""
    attributes = call["attributes"]
    dtypes = ["float32", "float16", "bfloat16", "int8", "int32", "uint8", "bool", "float8_e4m3fn", "complex64"]
    names = [info.name for info in _core.kernels()]

    def shape() -> tuple[int, ...]:
        return tuple(int(s) for s in rng.choice([0, 1, 2, 4, 5, 6, 16, 24, 33], int(rng.integers(0, 4))))

    def some_dims() -> np.ndarray:
        return np.array(rng.choice([0, 0, 1, 1, 2, 3, -1, 2**31, 2**62, -(2**63)], int(rng.integers(0, 4))), np.int64)

    def one_group() -> None:
        operand = attributes.get(str(rng.choice(["lhs", "rhs", "out"])))
        if isinstance(operand, dict):
            operand[str(rng.choice(GROUPS))] = some_dims()

    def swap_order() -> None:
        operand = attributes.get(str(rng.choice(["lhs", "rhs"])))
        if isinstance(operand, dict):
            operand["order"] = np.array([1, 0], np.int64)

    def another_type() -> None:
        attributes[str(rng.choice(list(attributes)))] = [3, 1.5, "text", True, np.arange(3), plain_dims()][
            rng.integers(6)
        ]

    def operand_or_result() -> None:
        buffers = call[str(rng.choice(["operands", "results"]))]
        new = (shape(), str(rng.choice(dtypes)))
        action = rng.integers(3)
        if action == 0 and len(buffers) > 1:
            buffers.pop(int(rng.integers(len(buffers))))
        elif action == 1:
            buffers.append(new)
        else:
            i = int(rng.integers(len(buffers)))
            buffers[i] = (new[0], buffers[i][1]) if rng.random() < 0.5 else (buffers[i][0], new[1])

    choices: list[Callable[[], Any]] = [
        lambda: attributes.update(kernel=str(rng.choice([*names, "naive", "x" * 1000, "\u00e9"]))),
        lambda: attributes.update(sm=int(rng.choice([0, -1, 75, 80, 90, 2**31, 2**40]))),
        lambda: attributes.update(precision=str(rng.choice(["", "high", "highest"]))),
        lambda: attributes.update(activation=str(rng.choice(["", "relu", "gelu"]))),
        lambda: attributes.update(has_alpha=bool(rng.integers(2))),
        lambda: attributes.update(split=rng.choice([-1, 0, 0, 1, 1, 2, 3, 2**62], 2)),
        lambda: attributes.pop(str(rng.choice(list(attributes))), None),
        one_group, one_group, swap_order, another_type, operand_or_result, operand_or_result,
    ]  # fmt: skip
    choices[rng.integers(len(choices))]()


def is_epilogue(shapes: Sequence[Sequence[int]], has_alpha: bool, batch: int, n: int) -> bool:
    """Whether these are alpha, if there is one, and perhaps a bias or one for each of the batch."""
    counts = [np.prod(shape, dtype=int) for shape in shapes]
    biases = [[]] if len(shapes) == has_alpha else [[n], [batch * n]]
    return counts in [[1] * has_alpha + bias for bias in biases]


def inside_its_buffers(call: Call) -> bool:
    """Whether everything that a kernel would touch after an accepted call exists."""
    attributes, buffers = call["attributes"], [*call["operands"][:2], call["results"][0]]
    dims = [_core.OperandDims(*(attributes[name][g].tolist() for g in GROUPS)) for name in ("lhs", "rhs", "out")]
    sizes = [list(shape) for shape, _ in buffers]
    rest, has_alpha = call["operands"][2:], attributes["has_alpha"]
    asked = _core.Problem(
        sizes[0], dims[0], sizes[1], dims[1], sizes[2], dims[2], *(dtype for _, dtype in buffers),
        attributes["precision"], attributes["activation"], has_alpha, len(rest) > has_alpha,
        attributes["sm"], tuple(attributes["split"].tolist()), len(call["results"]) > 1,
    )  # fmt: skip
    if 0 in (asked.batch, asked.m, asked.n, asked.k):
        return True
    lhs = (asked.m, asked.k) if asked.layout[0] == "N" else (asked.k, asked.m)
    rhs = (asked.k, asked.n) if asked.layout[1] == "N" else (asked.n, asked.k)
    views = [(lhs, asked.lhs_stride), (rhs, asked.rhs_stride), ((asked.m, asked.n), asked.out_stride)]
    last = [(asked.batch - 1) * step + (rows - 1) * ld + cols for (rows, cols), (step, ld) in views]
    needed = _core.workspace_bytes(attributes["kernel"], asked)
    given = np.prod(call["results"][1][0]) if len(call["results"]) > 1 else 0
    epilogue = is_epilogue([shape for shape, _ in rest], has_alpha, asked.batch, asked.n)
    return epilogue and needed <= given and all(n <= np.prod(s) for n, s in zip(last, sizes, strict=True))


def main(count: int) -> None:
    """Prints the listed calls, then ``count`` random ones."""
    jax.ffi.register_ffi_target(CHECK_TARGET, _core.handlers()[CHECK_TARGET], platform="cpu")
    for name, call in listed():
        print(json.dumps({"name": name, "error": run(call)}), flush=True)
    rng = np.random.default_rng(0)
    bases = [good_call(), padded_call(), split_call(2, 5)]
    for number in range(count):
        call = copy.deepcopy(bases[number % 3])
        for _ in range(int(rng.integers(1, 4))):
            corrupt(call, rng)
        error = run(call)
        line = {"name": number, "error": error, "call": repr(call), "inside": bool(error) or inside_its_buffers(call)}
        print(json.dumps(line | {"good": run(bases[0]) if number % 20 == 0 else ""}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
