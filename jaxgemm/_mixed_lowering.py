"""From the primitive of products with quantised weights to the custom call."""

import math
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jaxgemm._mixed_choose import MixedRequest, choose_mixed
from jaxgemm._mixed_local import Form, composed, local_mixed_gemm_p
from jaxgemm._native import MIXED_TARGET
from jaxgemm._target import target_sm


def _call(*operands: Any, form: Form, kernel: str | None) -> Any:
    request = MixedRequest.of(operands, form)
    choice = choose_mixed(request, kernel, target_sm())
    if choice.kernel is None:
        return composed(*operands, form=form)
    x, packed, scales, *rest = operands  # rest: zeros, alpha and bias, which has batch dimensions or none
    nb = packed.ndim - 3
    batch = math.prod(packed.shape[:nb])
    rows = x.shape[nb:-1]

    def matrices(array: Any, kept: int) -> Any:
        return array.reshape(batch, *array.shape[array.ndim - kept :])

    lhs = x.reshape(batch, math.prod(rows), form.k)
    results = [jax.ShapeDtypeStruct((*lhs.shape[:2], form.n), form.out_dtype)]
    if choice.workspace_bytes:
        results.append(jax.ShapeDtypeStruct((choice.workspace_bytes,), np.uint8))
    out, *_ = jax.ffi.ffi_call(MIXED_TARGET, results)(
        lhs,
        matrices(packed, 3),
        matrices(scales, 2),
        *(matrices(zeros, 2) for zeros in rest[: form.has_zeros]),
        *(value if value.ndim < 2 else matrices(value, 1) for value in rest[form.has_zeros :]),
        kernel=choice.kernel,
        activation=form.activation,
        has_alpha=form.has_alpha,
        split=np.array(choice.split, np.int64),
        bits=np.int64(form.bits),
        group_size=np.int64(form.group_size),
        zeros=request.zeros_name,
    )
    return out.reshape(*x.shape[:-1], form.n)


mlir.register_lowering(local_mixed_gemm_p, mlir.lower_fun(_call, multiple_results=False), platform="cuda")
