"""Measures which kernel is the fastest on the attached GPU: what ``python -m jaxgemm tune`` does for each problem."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxgemm._choose import Request, able_kernels, native_problem, preference, tuning_key
from jaxgemm._dot_general import dot_general
from jaxgemm._files import driver_version
from jaxgemm._native import _core
from jaxgemm._options import options
from jaxgemm._plan import DimensionNumbers
from jaxgemm._reference import error_over_bound, reference
from jaxgemm._timing import compare, random_array, rotating_arg_sets
from jaxgemm._tuning import MARGIN
from jaxgemm._tuning_table import Entry, Key, Table, merge
from jaxgemm._version import __version__

MAX_ESTIMATE = 3.0
"""Kernels that the model expects to take so many times as long as its choice are not tried."""
ROUNDS, MIN_ROUNDS, BUDGET_S = 20, 7, 6.0
JAX = "jax.lax.dot_general"
"""Stands among the names of kernels for what JAX makes of the product without us."""

# Llama-3-8B's feed-forward block at some numbers of tokens, and squares: (batch, m, n, k).
DEFAULT_SIZES = [(1, size, size, size) for size in (512, 1024, 2048, 4096, 8192)] + [
    (1, tokens, n, k) for n, k in ((14336, 4096), (4096, 14336)) for tokens in (1, 16, 128, 512, 2048)
]


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured on one problem.

    Attributes:
      key: the problem.
      times_us: microseconds of each kernel that was timed, by full name, and of JAX's own product, :data:`JAX`.
      model: the kernel that the model chooses; "" if none can run the problem.
      rejected: kernel -> why it was not timed: it raised, or its result was wrong.
      failure: why nothing was learned, "" if something was.
      jax_failure: why JAX's own product was not timed, so that ``jaxgemm.install()`` will not take the problem; "" if
        it was.
    """

    key: Key
    times_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    model: str = ""
    rejected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failure: str = ""
    jax_failure: str = ""

    @property
    def entry(self) -> Entry | None:
        """The row for a tuning table; the model's choice unless another kernel is faster by more than MARGIN."""
        if self.failure:
            return None
        us = {name: float(f"{us:.5g}") for name, us in self.times_us.items()}
        jax_us = us.pop(JAX, None)
        best = min(us, key=lambda name: self.times_us[name])
        if self.times_us[self.model] <= MARGIN * self.times_us[best]:
            best = self.model
        return Entry(best, us[best], self.model, us[self.model], jax_us)


def dimension_numbers(key: Key) -> DimensionNumbers:
    """What makes ``dot_general`` of the operands the product."""
    first = 1 if key.batch > 1 else 0
    lhs_k = first + (1 if key.layout[0] == "N" else 0)
    rhs_k = first + (0 if key.layout[1] == "N" else 1)
    batch = tuple(range(first))
    return ((lhs_k,), (rhs_k,)), (batch, batch)


def operand_shapes(key: Key) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of lhs and rhs as they are stored; the batch is a dimension only if there are several."""
    batch = (key.batch,) if key.batch > 1 else ()
    lhs = (key.m, key.k) if key.layout[0] == "N" else (key.k, key.m)
    rhs = (key.k, key.n) if key.layout[1] == "N" else (key.n, key.k)
    return batch + lhs, batch + rhs


def request_of(key: Key) -> Request:
    """The problem as the chooser is asked about it."""
    lhs, rhs = operand_shapes(key)
    out = ((key.batch,) if key.batch > 1 else ()) + (key.m, key.n)
    precision = jax.lax.Precision(key.precision)
    return Request(
        jax.ShapeDtypeStruct(lhs, jnp.dtype(key.lhs_dtype)),
        jax.ShapeDtypeStruct(rhs, jnp.dtype(key.rhs_dtype)),
        jax.ShapeDtypeStruct(out, jnp.dtype(key.out_dtype)),
        dimension_numbers(key),
        (precision, precision),
    )


def canonical(key: Key, sm: int) -> Key:
    """The key under which the chooser looks the problem up: a single row is not transposed, whatever was asked for.

    Raises:
      ValueError: the product of its sizes is too large for any buffer.
    """
    request = request_of(key)
    found = tuning_key(request, native_problem(request, sm))
    assert found is not None, key  # its operands are dense
    return found


def empty_table(device: str) -> Table:
    """A table for what is measured now, with this software."""
    return Table(device, __version__, _core.source_hash(), jax.__version__, driver_version(), {})


def kernel_function(key: Key, name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The compiled product of the operands by one kernel."""
    run = functools.partial(
        dot_general,
        dimension_numbers=dimension_numbers(key),
        precision=key.precision,
        preferred_element_type=jnp.dtype(key.out_dtype),
        kernel=name,
    )
    return jax.jit(run)


def jax_function(key: Key) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The same product by JAX's own rule, as XLA autotunes it."""
    precision = jax.lax.Precision(key.precision)
    run = functools.partial(
        jax.lax.dot_general,
        dimension_numbers=dimension_numbers(key),
        precision=(precision, precision),
        preferred_element_type=jnp.dtype(key.out_dtype),
    )
    return jax.jit(run)


def measure(
    keys: Sequence[Key], sm: int, device: str, path: Path, limit_s: float, each: Callable[[Result], object]
) -> None:
    """Measures problems one after the other, calls ``each`` with every result, and writes it into the table at ``path``
    before the next is begun, so that nothing is lost. None is begun after ``limit_s`` seconds but the first.

    Raises:
      OSError: the table cannot be written.
    """
    begin = time.perf_counter()
    for place, key in enumerate(keys):
        if place and time.perf_counter() - begin > limit_s:
            break
        result = tune(key, sm)
        each(result)
        if result.entry is not None:
            merge(path, dataclasses.replace(empty_table(device), entries={key: result.entry}))
        jax.clear_caches()  # executables hold device memory; and programs were compiled without knowing


def tune(key: Key, sm: int) -> Result:
    """Checks the kernels that may be the fastest on a problem against float64 and times those that are right, and
    JAX's own product.

    Args:
      key: a canonical key.
      sm: compute capability, times ten, of the attached GPU.
    """
    try:
        model, candidates = contenders(key, sm)
    except ValueError as error:
        return Result(key, failure=str(error))
    rejected: dict[str, str] = {}
    try:
        sets = rotating_arg_sets(functools.partial(_operands, key), _operand_bytes(key))
        functions = _right_ones(key, candidates, sets[0], rejected)
        if model not in functions:
            failure = f"the model's choice, {model}, is not to be trusted: {rejected[model]}"
            return Result(key, {}, model, rejected, failure)
        with options(install=False):
            own, jax_failure = _jax_if_able(key, sets[0])
            timings = compare(functions | own, sets, rounds=ROUNDS, min_rounds=MIN_ROUNDS, budget_s=BUDGET_S)
    except Exception as error:  # out of memory, a GPU that answers no more: the next problem may do
        return Result(key, {}, model, rejected, _first_line(error))
    if any(timing.source != "cupti" for timing in timings.values()):
        return Result(key, {}, model, rejected, "no device time: CUPTI is not available")
    times = {name: timing.us for name, timing in timings.items()}
    if not all(math.isfinite(us) and us > 0 for us in times.values()):
        return Result(key, {}, model, rejected, f"times that are not positive: {times}")
    return Result(key, times, model, rejected, jax_failure=jax_failure)


def contenders(key: Key, sm: int) -> tuple[str, list[str]]:
    """The kernel that the model chooses, and those to time: that one, and what competes with it on price.

    Raises:
      ValueError: no kernel runs the problem.
    """
    request = request_of(key)
    problem = native_problem(request, sm)
    able = able_kernels(request, problem)
    model = _core.select(problem)
    if not able or not model:
        raise ValueError(f"no kernel takes {problem}")
    order = preference(problem)
    rung, cost, _ = order(model)
    return model, [name for name in able if order(name)[0] == rung and order(name)[1] <= MAX_ESTIMATE * cost]


def _operands(key: Key, seed: int) -> tuple[jax.Array, jax.Array]:
    lhs, rhs = operand_shapes(key)
    return random_array(2 * seed, lhs, key.lhs_dtype), random_array(2 * seed + 1, rhs, key.rhs_dtype)


def _operand_bytes(key: Key) -> int:
    dtypes = (key.lhs_dtype, key.rhs_dtype)
    return sum(
        math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in zip(operand_shapes(key), dtypes, strict=True)
    )


def _right_ones(
    key: Key, names: Sequence[str], operands: tuple[jax.Array, jax.Array], rejected: dict[str, str]
) -> dict[str, Callable[[jax.Array, jax.Array], jax.Array]]:
    """Those kernels, compiled, whose result is within its bound of float64; why not the others, into ``rejected``."""
    exact, magnitude = reference(*operands, dimension_numbers(key))
    right = {}
    for name in names:
        try:
            function = kernel_function(key, name)
            out = function(*operands)
            error = error_over_bound(out, exact, magnitude, key.k, key.lhs_dtype, key.out_dtype, key.precision)
        except Exception as failed:
            rejected[name] = _first_line(failed)
            continue
        if error <= 1:
            right[name] = function
        else:
            rejected[name] = f"its result is {error:.3g} error bounds off float64"
    return right


def _jax_if_able(key: Key, operands: tuple[jax.Array, jax.Array]) -> tuple[dict[str, Callable[..., jax.Array]], str]:
    """JAX's own product by its name, and ""; where XLA cannot compile or run it, nothing, and why."""
    function = jax_function(key)
    try:
        jax.block_until_ready(function(*operands))
    except Exception as error:  # a product of dtypes that only we have kernels for, or out of memory
        return {}, _first_line(error)
    return {JAX: function}, ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
