"""The measurements behind ``python -m jaxgemm``: every kernel, and one real layer, each checked before it is timed."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxgemm._choose import explain, kernels
from jaxgemm._matmul import matmul
from jaxgemm._native import _core
from jaxgemm._reference import error_over_bound, reference
from jaxgemm._target import attached_gpu
from jaxgemm._timing import Timing, compare, random_array, rotating_arg_sets

# Llama-3-8B: hidden size and width of the feed-forward block (Meta, "The Llama 3 Herd of Models", 2024, table 3).
LLAMA_8B_HIDDEN, LLAMA_8B_FEED_FORWARD = 4096, 14336
# The error of the block's first tokens (all would take long: float64 on a CPU) may be LAYER_TIMES_JNP times jnp's and
# LAYER_ALLOWANCE.
LAYER_CHECKED_TOKENS, LAYER_TIMES_JNP, LAYER_ALLOWANCE = 4, 2, 1e-3
_PLAIN_MATMUL = (((1,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class KernelGroup:
    """Kernels that are timed together, by full name; None where there are no kernels."""

    dtype: str
    precision: str
    names: list[str | None]

    @property
    def out_dtype(self) -> str:
        if jnp.issubdtype(self.dtype, jnp.integer):
            return "int32"
        return "bfloat16" if jnp.dtype(self.dtype).itemsize == 1 else self.dtype


@dataclasses.dataclass(frozen=True)
class KernelRow:
    """One kernel on a square problem. Times in microseconds; rates in TFLOP/s; errors in units of their bound."""

    kernel: str
    dtype: str
    precision: str
    m: int
    n: int
    k: int
    us: float
    tflops: float
    jnp_us: float
    ratio_to_jnp: float
    max_err_over_bound: float
    time_source: str


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """The feed-forward block at one token count. Errors are the largest absolute ones over the largest output."""

    tokens: int
    us: float
    jnp_us: float
    ratio_to_jnp: float
    error: float
    jnp_error: float
    time_source: str


Matmul = Callable[[jax.Array, jax.Array], jax.Array]


def on_gpu() -> bool:
    """Whether the default device has kernels."""
    return jax.default_backend() == "gpu" and attached_gpu() is not None


def kernel_groups(size: int) -> list[KernelGroup]:
    """What runs on size x size x size.

    A kernel runs in the first of its groups; in the others, one configuration of its family does: the chooser's.
    """
    if not on_gpu():
        return [KernelGroup("float32", "highest", [None]), KernelGroup("bfloat16", "default", [None])]
    groups: dict[tuple[str, str], KernelGroup] = {}
    for info in kernels():
        for i, (dtype, precision) in enumerate(_arithmetics(info)):
            group = groups.setdefault((dtype, precision), KernelGroup(dtype, precision, []))
            name = info.name if i == 0 else _choice_of_family(info.family, group, size)
            if name not in group.names:
                group.names.append(name)
    return list(groups.values())


def _arithmetics(info: Any) -> list[tuple[str, str]]:
    """(dtype, precision) of all that a kernel does differently; float16 and bfloat16 run alike, as 8-bit ones do."""
    dtypes = {lhs for lhs, _, _ in info.dtypes}
    for one, another in (("bfloat16", "float16"), ("float8_e4m3fn", "float8_e5m2")):
        if one in dtypes:
            dtypes.discard(another)
    found = [(dtype, "default") for dtype in sorted(dtypes) if dtype != "float32" or info.tf32]
    return found + ([("float32", "highest")] if "float32" in dtypes and info.highest else [])


def _choice_of_family(family: str, group: KernelGroup, size: int) -> str | None:
    operand = jax.ShapeDtypeStruct((size, size), group.dtype)
    return explain(operand, operand, kernel=family, **_matmul_options(group)).kernel


def _matmul_options(group: KernelGroup) -> dict[str, Any]:
    # Said even where it is the default: jax_default_matmul_precision may be set.
    return {"precision": group.precision, "preferred_element_type": jnp.dtype(group.out_dtype)}


def measure_kernels(size: int, rounds: int) -> Iterator[KernelRow]:
    """Checks every kernel on size x size x size elementwise against float64, then times those of one group together.

    Raises:
      RuntimeError: a result is farther from float64 than its bound.
    """
    for group in kernel_groups(size):
        dtype, options = group.dtype, _matmul_options(group)
        bytes_per_set = 2 * size * size * jnp.dtype(dtype).itemsize
        sets = rotating_arg_sets(functools.partial(_square_operands, size=size, dtype=dtype), bytes_per_set, max_sets=8)
        lhs, rhs = sets[0]
        exact, magnitude = reference(lhs, rhs, _PLAIN_MATMUL)
        functions: dict[str, Any] = {"jnp": jax.jit(functools.partial(jnp.dot, **options))}
        errors: dict[str, float] = {}
        for name in group.names:
            label = name or "XLA dot"
            functions[label] = jax.jit(functools.partial(matmul, kernel=name, **options))
            errors[label] = error_over_bound(
                functions[label](lhs, rhs), exact, magnitude, size, dtype, group.out_dtype, group.precision
            )
            if not errors[label] <= 1:
                raise RuntimeError(
                    f"{label} on {dtype} {size}x{size}x{size} at precision {group.precision} is {errors[label]} error "
                    "bounds off float64"
                )
        del exact, magnitude
        times = compare(functions, sets, rounds=rounds, min_rounds=3, budget_s=5)
        for label, error in errors.items():
            yield _kernel_row(label, group, size, times[label], times["jnp"], error)


def _square_operands(i: int, *, size: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    return random_array(2 * i, (size, size), dtype), random_array(2 * i + 1, (size, size), dtype)


def _kernel_row(label: str, group: KernelGroup, size: int, time: Timing, peer: Timing, error: float) -> KernelRow:
    return KernelRow(
        kernel=label,
        dtype=group.dtype,
        precision=group.precision,
        m=size,
        n=size,
        k=size,
        us=time.us,
        tflops=2 * size**3 / time.us * 1e-6,
        jnp_us=peer.us,
        ratio_to_jnp=peer.us / time.us,
        max_err_over_bound=error,
        time_source=time.source,
    )


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array, *, multiply: Matmul, silu: Matmul) -> Any:
    """The feed-forward block of Llama: ``(silu(x @ gate) * (x @ up)) @ down``. ``silu(a, b)`` is silu(a @ b)."""
    return multiply(silu(x, gate) * multiply(x, up), down)


def measure_layer(tokens: tuple[int, ...], rounds: int) -> Iterator[LayerRow]:
    """One feed-forward block of Llama-3-8B in bfloat16 through ``jaxgemm.matmul`` and through ``jnp.matmul``.

    Raises:
      RuntimeError: the jaxgemm block is farther from float64 than the jnp block, by more than is allowed above.
    """
    hidden, width = LLAMA_8B_HIDDEN, LLAMA_8B_FEED_FORWARD
    gate, up, down = (
        (random_array(i, shape, jnp.float32) * shape[0] ** -0.5).astype(jnp.bfloat16)
        for i, shape in enumerate([(hidden, width), (hidden, width), (width, hidden)])
    )
    ours = jax.jit(functools.partial(swiglu, multiply=matmul, silu=functools.partial(matmul, activation="silu")))
    theirs = jax.jit(functools.partial(swiglu, multiply=jnp.matmul, silu=lambda a, b: jax.nn.silu(jnp.matmul(a, b))))
    for count in tokens:
        # The weights alone are several times the L2 cache: only the activations need no rotation.
        sets = [(random_array(10 + i, (count, hidden), jnp.bfloat16), gate, up, down) for i in range(2)]
        exact = _exact_layer(*sets[0])
        error, jnp_error = (_relative_error(f(*sets[0]), exact) for f in (ours, theirs))
        if not error <= LAYER_TIMES_JNP * jnp_error + LAYER_ALLOWANCE:
            raise RuntimeError(
                f"the block at {count} tokens is {error:.2e} off float64, jnp.matmul's is {jnp_error:.2e}"
            )
        times = compare({"jaxgemm": ours, "jnp": theirs}, sets, rounds=rounds, min_rounds=3, budget_s=3)
        yield LayerRow(
            tokens=count,
            us=times["jaxgemm"].us,
            jnp_us=times["jnp"].us,
            ratio_to_jnp=times["jnp"].us / times["jaxgemm"].us,
            error=error,
            jnp_error=jnp_error,
            time_source=times["jaxgemm"].source,
        )


def _exact_layer(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    with jax.enable_x64(True):
        return _float64_layer(x[:LAYER_CHECKED_TOKENS], gate, up, down)


@jax.jit
def _float64_layer(*operands: jax.Array) -> jax.Array:
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision="highest")

    x, gate, up, down = (x.astype(jnp.float64) for x in operands)
    return swiglu(x, gate, up, down, multiply=product, silu=lambda a, b: jax.nn.silu(product(a, b)))


def _relative_error(out: jax.Array, exact: jax.Array) -> float:
    with jax.enable_x64(True):
        difference = jnp.max(abs(out[: exact.shape[0]].astype(jnp.float64) - exact))
        return float(difference / jnp.max(abs(exact)))


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    from jaxgemm._version import __version__

    return {
        "jaxgemm": __version__,
        "jax": jax.__version__,
        "devices": [f"{d.device_kind} ({d.platform}:{d.id})" for d in jax.devices()],
        "kernels": [info.name for info in kernels()],
        "source_hash": _core.source_hash(),
    }
