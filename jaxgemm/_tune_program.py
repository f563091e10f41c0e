"""``jaxgemm.tune``: measures the products of a program, so that ``jaxgemm.install()`` knows which of them to take."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p

from jaxgemm import _primitives, _tune, _tuning
from jaxgemm._choose import Request, native_problem, sub_jaxprs, tuning_key, why_no_problem
from jaxgemm._install import as_computed
from jaxgemm._target import attached_gpu, target_sm
from jaxgemm._tuning_table import Entry, Key


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found; ``str()`` of it is meant for people.

    Attributes:
      measured: problem -> what was measured of it, in this call.
      known: problems of the program that the tables had before.
      failures: problem -> why nothing was learned of it.
      left: problems that ``limit_s`` left no time for.
      not_jax: problem -> why JAX's own product of it could not be timed: ``install()`` will not take it.
    """

    measured: dict[Key, Entry]
    known: tuple[Key, ...]
    failures: dict[Key, str]
    left: tuple[Key, ...]
    not_jax: dict[Key, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for key, entry in self.measured.items():
            own = f"not timed, {self.not_jax.get(key, '')}" if entry.jax_us is None else f"{entry.jax_us:,.1f} us"
            lines.append(f"{key}: {entry.kernel} {entry.us:,.1f} us, JAX's own product {own}")
        lines += [f"{key}: in a table already" for key in self.known]
        lines += [f"{key}: nothing learned, {why}" for key, why in self.failures.items()]
        lines += [f"{key}: not begun, give more time by limit_s" for key in self.left]
        return "\n".join(lines) or "no products that kernels could take"


def tune(function: Callable[..., Any], *args: Any, limit_s: float = 600.0, **kwargs: Any) -> Tuned:
    """Measures every product that ``function(*args, **kwargs)`` computes, forward and backward as they are in it, on
    the GPU here: kernels that may be the fastest, checked against float64, and JAX's own product.

    What it finds goes into the same table as that of ``python -m jaxgemm tune``, and counts at once: for
    :func:`jaxgemm.matmul`, and after :func:`jaxgemm.install` for JAX's own products. Problems that a table has already
    are not measured again.

        jaxgemm.tune(train_step, state, batch)
        jaxgemm.install()

    Args:
      function: it is traced and not run; ``jax.jit`` of it does as well. Sizes must be those of one device: they are
        inside ``shard_map``, and are not where ``jit`` splits arrays over several.
      *args, **kwargs: its arguments: arrays, ``jax.ShapeDtypeStruct`` or pytrees of them.
      limit_s: seconds after which no further problem is begun.

    Returns:
      What was measured, and what was not.

    Raises:
      RuntimeError: no CUDA GPU is attached; there is no folder for the table.
      OSError: the table cannot be written.
      ValueError: a product of sizes that no buffer has.
      Whatever tracing the function raises.
    """
    gpu = attached_gpu()
    if gpu is None:
        raise RuntimeError(
            "jaxgemm.tune measures on a CUDA GPU, and JAX sees none here. If this machine has one: python -m pip "
            "install 'jax[cuda13]'"
        )
    sm, device = target_sm(), gpu[1]
    path = _tuning.user_path(device)
    if path is None:
        raise RuntimeError("jaxgemm.tune has no folder for its table: set XDG_CACHE_HOME or HOME")
    keys = problems(function, *args, sm=sm, **kwargs)
    known = tuple(key for key in keys if any(entry.jax_us is not None for entry, _ in _tuning.find(key, device)))
    todo = [key for key in keys if key not in known]
    results: list[_tune.Result] = []
    _tune.measure(todo, sm, device, path, limit_s, results.append)
    _tuning.forget()
    return Tuned(
        {result.key: result.entry for result in results if result.entry is not None},
        known,
        {result.key: result.failure for result in results if result.failure},
        tuple(todo[len(results) :]),
        {result.key: result.jax_failure for result in results if result.jax_failure},
    )


def problems(function: Callable[..., Any], *args: Any, sm: int, **kwargs: Any) -> list[Key]:
    """The problems of a program that tables can know, each once, in the order of the program."""
    jaxpr = jax.make_jaxpr(function)(*args, **kwargs)
    found: dict[Key, None] = {}
    for request in _requests(jaxpr.jaxpr):
        if not request.symbolic and not why_no_problem(request):
            key = tuning_key(request, native_problem(request, sm))
            if key is not None:
                found[key] = None
    return list(found)


def _requests(jaxpr: Any) -> Sequence[Request]:
    found: list[Request] = []
    for equation in jaxpr.eqns:
        own = _primitives.request_of(equation)
        if own is not None:
            found.append(own[0])
        elif equation.primitive is dot_general_p and equation.params["dimension_numbers"][1] == ((), ()):
            avals = [v.aval for v in (*equation.invars, *equation.outvars)]
            found.append(as_computed(Request.of(*avals, **equation.params)))
        for sub in sub_jaxprs(equation.params):
            found += _requests(sub)
    return found
