"""Calls of the checks of the handler of quantised weights, good and corrupted: see handler_calls.py."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxgemm._choose import NO_SPLIT
from jaxgemm._native import MIXED_TARGET, _core
from jaxgemm._packing import packed_shape
from tests.handler_calls import Call, is_epilogue, run_on

CHECK_TARGET = f"{MIXED_TARGET}_check"
MMA, WGMMA, STREAM = "int4_mma:8x32x512", "int4_wgmma:64x64x128", "int4_wgmma:128x128x128"
BATCH, M, K, N, GROUP = 2, 3, 200, 48, 64
X, PACKED, SCALES, ZEROS = range(4)
"""Places of operands."""


def asked(call: Call) -> _core.Problem:
    """The problem of a call whose operands fit together."""
    attributes, (batch, m, k) = call["attributes"], call["operands"][X][0]
    return _core.mixed_problem(
        batch=batch, m=m, n=call["results"][0][0][2], k=k, lhs_dtype=call["operands"][X][1],
        out_dtype=call["results"][0][1], activation=attributes["activation"], has_alpha=attributes["has_alpha"],
        has_bias=False, bits=int(attributes["bits"]), group_size=int(attributes["group_size"]),
        scale_dtype=call["operands"][SCALES][1], zeros=attributes["zeros"], sm=attributes["sm"],
        split=tuple(attributes["split"].tolist()),
    )  # fmt: skip


def good_call(
    kernel: str = MMA, *, k: int = K, n: int = N, m: int = M, group: int = GROUP, zeros: str = "middle",
    split: tuple[int, int] = NO_SPLIT, scales: str = "float16",
) -> Call:  # fmt: skip
    """2 x 3x200 times 2 x 200x48, in groups of 64, with the workspace that it needs."""
    groups = (BATCH, -(-k // group), n)
    call = {
        "operands": [((BATCH, m, k), "bfloat16"), ((BATCH, *packed_shape(k, n, 4)), "uint8"), (groups, scales)]
        + ([(groups, "uint8")] if zeros == "integer" else []),
        "results": [((BATCH, m, n), "bfloat16")],
        "attributes": {
            "sm": 90, "kernel": kernel, "activation": "none", "has_alpha": False, "split": np.array(split),
            "bits": np.int64(4), "group_size": np.int64(group), "zeros": zeros,
        },
    }  # fmt: skip
    if size := _core.workspace_bytes(kernel, asked(call)):
        call["results"].append(((size,), "uint8"))
    return call


def listed() -> Iterator[tuple[str, Call, str]]:
    """Every check of the handler: name, call, and what the error must say, "" if the call is good."""

    def changed(change: Callable[[Call], Any], base: Call | None = None) -> Call:
        call = good_call() if base is None else base
        change(call)
        return call

    def attribute(base: Call | None = None, **kwargs: Any) -> Call:
        return changed(lambda call: call["attributes"].update(kwargs), base)

    def operand(place: int, shape: tuple[int, ...] | None = None, dtype: str = "", base: Call | None = None) -> Call:
        def change(call: Call) -> None:
            old = call["operands"][place]
            call["operands"][place] = (old[0] if shape is None else shape, dtype or old[1])

        return changed(change, base)

    def result(shape: tuple[int, ...], dtype: str = "bfloat16", place: int = 0, base: Call | None = None) -> Call:
        return changed(lambda call: call["results"].__setitem__(place, (shape, dtype)), base)

    def more(*operands: tuple[tuple[int, ...], str], alpha: bool = False) -> Call:
        return changed(lambda call: call["operands"].extend(operands), attribute(has_alpha=alpha))

    def without(name: str) -> Call:
        return changed(lambda call: call["attributes"].pop(name))

    undecoded = "Failed to decode all FFI handler operands|Wrong number of attributes"
    zeros = good_call(zeros="integer")
    yield "good", good_call(), ""
    for kernel in (MMA, WGMMA):
        yield f"good with zero points, {kernel}", good_call(kernel, zeros="integer"), ""
        yield f"good with K split, {kernel}", good_call(kernel, k=2 * 512 + 8, split=(0, 2)), ""
        yield f"good with rows to be padded, {kernel}", good_call(kernel, k=37), ""
        yield f"good with a group of all rows, {kernel}", good_call(kernel, group=K), ""
        yield f"good with a group of more than all rows, {kernel}", good_call(kernel, group=2**31 - 1), ""
        yield f"good without tokens, {kernel}", good_call(kernel, m=0), ""
        yield f"good without columns, {kernel}", good_call(kernel, n=0), ""
        yield f"good without rows, {kernel}", good_call(kernel, k=0), ""
    yield "good with scales in float32", good_call(scales="float32"), ""
    yield "good with bias", more(((N,), "float32")), ""
    yield "good with bias in 16 bits", more(((N,), "float16")), ""
    yield "good with a bias for each of the batch", more(((BATCH, N), "float32")), ""
    yield "good with alpha", more(((), "float32"), alpha=True), ""
    yield "good with alpha and bias", more(((), "float32"), ((N,), "bfloat16"), alpha=True), ""
    yield "good with a result in float32", result((BATCH, M, N), "float32"), ""

    yield (
        "kernel",
        attribute(kernel="fast"),
        f"no kernel is called 'fast'; this build has {_core.mixed_kernels()[0].name}, ",
    )
    yield "family is no kernel", attribute(kernel="int4_mma"), "no kernel is called 'int4_mma'; this build has"
    yield "kernel of dense operands", attribute(kernel="naive:32x32x1"), "no kernel is called 'naive:32x32x1'"
    yield "empty kernel", attribute(kernel=""), "no kernel is called ''; this build has"
    yield "kernel is a number", attribute(kernel=3), undecoded
    yield "no kernel", without("kernel"), undecoded
    yield "old GPU", attribute(sm=75), f"kernel '{MMA}' needs a GPU of sm_80 or newer, this one is sm_75"
    yield "old GPU for wgmma", attribute(good_call(WGMMA), sm=86), "needs a GPU of sm_90 to sm_90, this one is sm_86"
    yield "new GPU for wgmma", attribute(good_call(WGMMA), sm=100), "needs a GPU of sm_90 to sm_90, this one is sm_100"
    yield "activation", attribute(activation="tanh"), "no activation is called 'tanh'"
    yield "kind of zero points", attribute(zeros="negative"), "no zero points are called 'negative'"
    yield "kind of zero points is a number", attribute(zeros=0), undecoded
    yield "no kind of zero points", without("zeros"), undecoded

    yield "no bits", without("bits"), undecoded
    yield "bits of 32 bits", attribute(bits=np.int32(4)), undecoded
    eight = operand(PACKED, (BATCH, *packed_shape(K, N, 8)))
    yield (
        "8 bits",
        attribute(copy.deepcopy(eight), bits=np.int64(8)),
        "takes an rhs of 4-bit codes only, this one has 8-bit codes in groups",
    )
    yield (
        "8 bits of a packed array of 4",
        attribute(bits=np.int64(8)),
        "packed has shape [2, 3, 4, 512], not [2, 3, 4, 1024]",
    )
    yield "packed array of 8 bits", eight, "packed has shape [2, 3, 4, 1024], not [2, 3, 4, 512]"
    none = operand(PACKED, (BATCH, *packed_shape(K, N, 4)[:2], 0))
    yield "0 bits", attribute(none, bits=np.int64(0)), "codes have 4 or 8 bits, not 0"
    for bits in (0, -4, 2**40, -(2**63), 2**63 - 1):
        yield (
            f"{bits} bits of a packed array of 4",
            attribute(bits=np.int64(bits)),
            f"codes have 4 or 8 bits, not {bits}",
        )

    yield "no group", without("group_size"), undecoded
    for group in (0, -1, 2**31, 2**62, -(2**63)):
        yield f"group of {group}", attribute(group_size=np.int64(group)), f"group_size={group}"
    yield "group of 48", good_call(group=48), "takes groups of all rows or of a multiple of 32 rows, not of 48"
    yield "group of 1", good_call(group=1), "takes groups of all rows or of a multiple of 32 rows, not of 1"
    yield (
        "another group than that of scales",
        attribute(group_size=np.int64(128)),
        "scales has shape [2, 4, 48], not [2, 2, 48]",
    )

    yield "lhs is a matrix", operand(X, (M, K)), "lhs or out has not 3 dimensions"
    yield "lhs of another batch", operand(X, (1, M, K)), "out has shape [2, 3, 48], not [1, 3, 48]"
    yield "lhs of another K", operand(X, (BATCH, M, K + 64)), "packed has shape [2, 3, 4, 512], not [2, 3, 5, 512]"
    yield "lhs of a little more K", operand(X, (BATCH, M, 257)), "packed has shape [2, 3, 4, 512], not [2, 3, 5, 512]"
    yield (
        "lhs of another dtype",
        operand(X, dtype="float32"),
        "does not multiply float32 x float32 -> bfloat16; it takes",
    )
    yield "lhs of no dtype", operand(X, dtype="int16"), "the dtype of lhs, scales or out is not one of its own"
    yield "lhs of codes", operand(X, dtype="uint8"), "the dtype of lhs, scales or out is not one of its own"
    yield "out of another M", result((BATCH, M + 1, N)), "out has shape [2, 4, 48], not [2, 3, 48]"
    yield "out of another N", result((BATCH, M, N + 16)), "packed has shape [2, 3, 4, 512], not [2, 4, 4, 512]"
    yield "out of a little more N", result((BATCH, M, 41)), "scales has shape [2, 4, 48], not [2, 4, 41]"
    yield "out is a vector", result((M * N,)), "lhs or out has not 3 dimensions"
    yield "out of another dtype", result((BATCH, M, N), "float16"), "does not multiply bfloat16 x bfloat16 -> float16"
    yield "out of no dtype", result((BATCH, M, N), "int16"), "the dtype of lhs, scales or out is not one of its own"
    yield "codes of another dtype", operand(PACKED, dtype="int8"), "codes are not packed into uint8"
    yield "codes as words", operand(PACKED, (BATCH, 3, 4, 128), "int32"), "codes are not packed into uint8"
    yield "codes of one matrix", operand(PACKED, (3, 4, 512)), "packed has shape [3, 4, 512], not [2, 3, 4, 512]"
    yield (
        "codes the other way",
        operand(PACKED, (BATCH, 4, 3, 512)),
        "packed has shape [2, 4, 3, 512], not [2, 3, 4, 512]",
    )
    yield "codes of no shape", operand(PACKED, ()), "packed has shape [], not [2, 3, 4, 512]"
    yield "scales of one matrix", operand(SCALES, (4, N)), "scales has shape [4, 48], not [2, 4, 48]"
    yield "scales too few", operand(SCALES, (BATCH, 3, N)), "scales has shape [2, 3, 48], not [2, 4, 48]"
    yield "scales of integers", operand(SCALES, dtype="int8"), "takes no scales of int8"
    yield "scales of 8 bits", operand(SCALES, dtype="float8_e4m3fn"), "takes no scales of float8_e4m3fn"
    yield "scales of no dtype", operand(SCALES, dtype="int16"), "the dtype of lhs, scales or out is not one of its own"
    yield "scales in float32 for wgmma", good_call(WGMMA, scales="float32"), "takes scales of 16 bits"
    yield (
        "scales of integers for wgmma",
        operand(SCALES, dtype="int8", base=good_call(WGMMA)),
        "takes no scales of int8",
    )
    yield "N of 44 for wgmma", good_call(WGMMA, n=44), "takes N of a multiple of 8 here, not 44"
    yield (
        "N of 40 with zero points for wgmma",
        good_call(WGMMA, n=40, zeros="integer"),
        "takes N of a multiple of 16 here, not 40",
    )

    yield (
        "zero points announced and not there",
        attribute(zeros="integer"),
        "takes 4 or 5 operands and 1 or 2 results, got 3 and 1",
    )
    yield (
        "zero points there and not announced",
        attribute(copy.deepcopy(zeros), zeros="middle"),
        "bias is not a vector of N=48",
    )
    for dtype in ("int8", "float16", "int32"):
        yield (
            f"zero points of {dtype}", operand(ZEROS, dtype=dtype, base=copy.deepcopy(zeros)),
            "zero points are not of the dtype that 'integer' says",
        )  # fmt: skip
    yield (
        "zero points too few",
        operand(ZEROS, (BATCH, 3, N), base=copy.deepcopy(zeros)),
        "zeros has shape [2, 3, 48], not [2, 4, 48]",
    )
    floating = attribute(copy.deepcopy(zeros), zeros="float")
    yield (
        "integer zero points called float",
        copy.deepcopy(floating),
        "zero points are not of the dtype that 'float' says",
    )
    yield "zero points of floats", operand(ZEROS, dtype="float16", base=floating), "takes integer zero points, or none"

    for name, split, said in [
        ("left to the model", (0, 0), "split is no number of whole tiles and of CTAs for each other"),
        ("negative", (0, -1), "split is no number of whole tiles and of CTAs for each other"),
        ("more than k-tiles", (0, 2), "cannot split K=200 of the tiles after the first 0 of 4 over 2 CTAs"),
        ("huge", (0, 2**62), "cannot split K=200 of the tiles after the first 0 of 4 over 4611686018427387904 CTAs"),
        ("whole tiles", (1, 2), "splits K of all tiles or of none"),
        ("negative number of whole tiles", (-1, 1), "splits K of all tiles or of none"),
    ]:
        yield f"split: {name}", attribute(split=np.array(split)), said
    deep = good_call(WGMMA, k=12 * 128, split=(0, 8))
    yield "split over 8 CTAs, wgmma", copy.deepcopy(deep), ""
    yield "split over 9 CTAs, wgmma", attribute(deep, split=np.array([0, 9])), "splits K over 8 CTAs at most, not 9"
    streamed = good_call(STREAM, k=12 * 128, split=(0, 9))
    yield "K of all tiles over 9 CTAs", copy.deepcopy(streamed), ""
    for name, split, said in [
        ("more CTAs than there are", (0, 133), "splits K over 132 CTAs at most, not 133"),
        ("nothing to share", (2, 12), "cannot split K=1536 of the tiles after the first 2 of 2 over 12 CTAs"),
        ("more CTAs than k-tiles", (1, 13), "cannot split K=1536 of the tiles after the first 1 of 2 over 13 CTAs"),
    ]:
        yield f"stream: {name}", attribute(copy.deepcopy(streamed), split=np.array(split)), said
    yield "split of one number", attribute(split=np.array([1])), "split is no number of whole tiles and of CTAs"
    yield "split of 32 bits", attribute(split=np.array([0, 1], np.int32)), undecoded
    yield "no split", without("split"), undecoded

    yield (
        "no operands",
        changed(lambda call: call["operands"].clear()),
        "takes 3 or 4 operands and 1 or 2 results, got 0 and 1",
    )
    yield (
        "two operands",
        changed(lambda call: call["operands"].pop()),
        "takes 3 or 4 operands and 1 or 2 results, got 2 and 1",
    )
    yield (
        "five operands",
        more(((N,), "float32"), ((N,), "float32")),
        "takes 3 or 4 operands and 1 or 2 results, got 5 and 1",
    )
    yield (
        "three results", changed(lambda call: call["results"].extend([((6,), "uint8")] * 2)),
        "takes 3 or 4 operands and 1 or 2 results, got 3 and 3",
    )  # fmt: skip
    yield (
        "short bias",
        more(((N - 1,), "float32")),
        "bias is not a vector of N=48 floating-point numbers of 16 or 32 bits",
    )
    yield "bias for a larger batch", more(((BATCH + 1, N), "float32")), "nor one for each of the batch of 2"
    yield "bias of another dtype", more(((N,), "int8")), "bias is not a vector of N=48"
    yield (
        "alpha announced and not there",
        more(alpha=True),
        "takes 4 or 5 operands with alpha and 1 or 2 results, got 3 and 1",
    )
    yield "alpha in half", more(((), "float16"), alpha=True), "alpha is not one float32 number"
    yield "two alphas", more(((2,), "float32"), alpha=True), "alpha is not one float32 number"
    yield "bias before alpha", more(((N,), "float32"), ((), "float32"), alpha=True), "alpha is not one float32 number"
    yield "has_alpha is a number", attribute(has_alpha=1), undecoded
    for name, base in (("padded rows", good_call(k=37)), ("sums", good_call(k=2 * 512 + 8, split=(0, 2)))):
        (size,), _ = base["results"][1]
        yield (
            f"no workspace for {name}",
            changed(lambda call: call["results"].pop(), copy.deepcopy(base)),
            f"kernel '{MMA}' needs {size} ",
        )
        yield (
            f"small workspace for {name}",
            result((size - 1,), "uint8", 1, copy.deepcopy(base)),
            f"bytes of workspace, got {size - 1}",
        )
        yield (
            f"workspace of another dtype for {name}",
            result((size,), "float32", 1, copy.deepcopy(base)),
            "bytes of workspace, got 0",
        )
    yield "good after all", good_call(), ""


def corrupt(call: Call, rng: np.random.Generator) -> None:
    """Changes one random thing."""
    attributes = call["attributes"]
    dtypes = ["float32", "float16", "bfloat16", "int8", "int32", "uint8", "bool", "float8_e4m3fn"]
    names = [info.name for info in (*_core.mixed_kernels(), *_core.kernels()[:2])]
    numbers = [0, 1, 4, 8, 32, 48, 64, 128, 2**31 - 1, 2**31, 2**62, -1, -(2**63)]

    def operand_or_result() -> None:
        buffers = call[str(rng.choice(["operands", "operands", "results"]))]
        i = int(rng.integers(len(buffers))) if buffers else 0
        action = rng.integers(5)
        if action == 0 and len(buffers) > 1:
            buffers.pop(i)
        elif action == 1 or not buffers:
            shape = tuple(int(s) for s in rng.choice([0, 1, 2, 3, 4, 48, 200, 512], int(rng.integers(0, 4))))
            buffers.append((shape, str(rng.choice(dtypes))))
        elif action == 2:
            buffers[i] = (buffers[i][0], str(rng.choice(dtypes)))
        else:
            shape = list(buffers[i][0])
            if shape:
                shape[int(rng.integers(len(shape)))] = int(rng.choice([0, 1, 2, 3, 4, 16, 37, 40, 48, 64, 200, 256]))
            buffers[i] = (tuple(shape), buffers[i][1])

    def another_type() -> None:
        attributes[str(rng.choice(list(attributes)))] = [3, 1.5, "text", True, np.arange(3)][rng.integers(5)]

    choices: list[Callable[[], Any]] = [
        lambda: attributes.update(kernel=str(rng.choice(names))),
        lambda: attributes.update(sm=int(rng.choice([0, -1, 75, 80, 90, 100, 2**31]))),
        lambda: attributes.update(activation=str(rng.choice(["", "relu", "gelu"]))),
        lambda: attributes.update(has_alpha=bool(rng.integers(2))),
        lambda: attributes.update(split=rng.choice([-1, 0, 0, 1, 1, 2, 3, 8, 2**62], 2)),
        lambda: attributes.update(bits=np.int64(rng.choice(numbers))),
        lambda: attributes.update(group_size=np.int64(rng.choice(numbers))),
        lambda: attributes.update(zeros=str(rng.choice(["middle", "integer", "float", ""]))),
        lambda: attributes.pop(str(rng.choice(list(attributes))), None),
        another_type, operand_or_result, operand_or_result, operand_or_result,
    ]  # fmt: skip
    choices[rng.integers(len(choices))]()


def inside_its_buffers(call: Call) -> bool:
    """Whether the operands of an accepted call are all that a kernel would touch."""
    attributes, operands, (out, *workspace) = call["attributes"], call["operands"], call["results"]
    (batch, m, k), n = operands[X][0], out[0][2]
    group, has_zeros = int(attributes["group_size"]), attributes["zeros"] != "middle"
    rest = [shape for shape, _ in operands[3 + has_zeros :]]
    groups = (batch, -(-k // group), n)
    wanted = [(batch, *packed_shape(k, n, int(attributes["bits"]))), groups] + [groups] * has_zeros
    needed = _core.workspace_bytes(attributes["kernel"], asked(call))
    return (
        [shape for shape, _ in operands[1 : 3 + has_zeros]] == wanted
        and out[0] == (batch, m, n)
        and is_epilogue(rest, attributes["has_alpha"], batch, n)
        and needed <= (np.prod(workspace[0][0], dtype=int) if workspace else 0)
    )


def main(count: int) -> None:
    """Prints the listed calls, then ``count`` random ones."""
    jax.ffi.register_ffi_target(CHECK_TARGET, _core.handlers()[CHECK_TARGET], platform="cpu")
    for name, call, _ in listed():
        print(json.dumps({"name": name, "error": run_on(CHECK_TARGET, call)}), flush=True)
    rng = np.random.default_rng(0)
    bases = [good_call(), good_call(WGMMA, zeros="integer"), good_call(k=2 * 512 + 8, split=(0, 2))]
    for number in range(count):
        call = copy.deepcopy(bases[number % 3])
        for _ in range(int(rng.integers(1, 3))):
            corrupt(call, rng)
        error = run_on(CHECK_TARGET, call)
        inside = bool(error or inside_its_buffers(call))
        good = run_on(CHECK_TARGET, bases[0]) if number % 20 == 0 else ""
        print(
            json.dumps({"name": number, "error": error, "call": repr(call), "inside": inside, "good": good}), flush=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
