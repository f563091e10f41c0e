"""The custom call itself, with attributes, buffers and batches that the package's lowering would not choose."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxgemm._choose import BY_MODEL, NO_SPLIT
from jaxgemm._native import GEMM_TARGET, _core
from jaxgemm._plan import OperandPlan, Plan
from jaxgemm._target import target_sm
from tests.edge_shapes import Case


def raw_call(results: Sequence[jax.ShapeDtypeStruct], operands: Sequence[Any], **attributes: Any) -> list[jax.Array]:
    """Calls the FFI target with exactly these results and attributes; to be used inside ``jit``."""
    primitive = Primitive("jaxgemm_raw_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_: [jax.core.ShapedArray(r.shape, r.dtype) for r in results])
    rule = jax.ffi.ffi_lowering(GEMM_TARGET)
    mlir.register_lowering(primitive, lambda ctx, *xs: rule(ctx, *xs, **attributes), platform="cuda")
    return primitive.bind(*operands)


def batched_plan(case: Case) -> Plan:
    """The plan that keeps the batch of a case a batch (make_plan() merges it into rows or columns where it can)."""

    def operand(shape: Sequence[int], transposed: bool) -> OperandPlan:
        first = len(shape) - 2
        rows, cols = (first + 1, first) if transposed else (first, first + 1)
        return OperandPlan(tuple(range(len(shape))), tuple(range(first)), (rows,), (cols,))

    out = (0, 1, 2)
    batch_dim = 1 if case.shape.batch == "lhs_shared" else 0
    rows, cols = [d for d in out if d != batch_dim]
    return Plan(
        operand(case.lhs_shape, case.layout[0] == "T"),
        operand(case.rhs_shape, case.layout[1] == "T"),
        OperandPlan((0, 1), (), (0,), (1,)) if case.shape.batch == "none"
        else OperandPlan(out, (batch_dim,), (rows,), (cols,)),
    )  # fmt: skip


def attributes_of(plan: Plan, kernel: str, precision: str = "default", /, **changed: Any) -> dict[str, Any]:
    """The attributes of a custom call, some of them ``changed``."""
    attributes: dict[str, Any] = {
        "kernel": kernel, "precision": precision, "activation": "none", "has_alpha": False,
        "split": np.array(NO_SPLIT),
        "lhs": plan.lhs.attribute(), "rhs": plan.rhs.attribute(), "out": plan.out.attribute(),
    }  # fmt: skip
    return attributes | changed


def split_and_workspace(
    kernel: str, dtypes: tuple[str, str, str], precision: str, case: Case, plan: Plan,
    split: tuple[int, int] = BY_MODEL,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """How the model splits K on this GPU, or ``split``, and the bytes that the kernel then asks for, alignment
    included.
    """
    problem = _core.Problem(
        lhs_sizes=list(case.lhs_shape), lhs_dims=plan.lhs.native(),
        rhs_sizes=list(case.rhs_shape), rhs_dims=plan.rhs.native(),
        out_sizes=list(case.out_shape), out_dims=plan.out.native(),
        lhs_dtype=dtypes[0], rhs_dtype=dtypes[1], out_dtype=dtypes[2],
        precision=precision, activation="none", has_alpha=False, has_bias=False,
        sm=target_sm(), split=split,
    )  # fmt: skip
    return np.array(_core.k_split(kernel, problem)), _core.workspace_bytes(kernel, problem)


def device_view(base: jax.Array, offset_bytes: int, shape: Sequence[int], dtype: Any) -> jax.Array:
    """A float16, float32 or integer array that lies inside ``base`` without a copy; ``base`` must outlive it."""

    address = base.unsafe_buffer_pointer() + offset_bytes
    interface = {
        "shape": tuple(shape), "typestr": np.dtype(dtype).str, "strides": None, "version": 2, "data": (address, False)
    }  # fmt: skip
    return jnp.array(SimpleNamespace(__cuda_array_interface__=interface), copy=False)
