"""Which kernel runs a GEMM, and the sentences that say why not."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import _compat, _tuning
from jaxgemm._native import _core
from jaxgemm._plan import DimensionNumbers, Plan, make_plan
from jaxgemm._target import device_kind, target_sm
from jaxgemm._tuning_table import Key

# What the kernels guarantee for each of XLA's dot algorithms: operand dtype that it is about, our precision.
_ALGORITHMS = {
    lax.DotAlgorithmPreset.F16_F16_F32: ("float16", "default"),
    lax.DotAlgorithmPreset.BF16_BF16_F32: ("bfloat16", "default"),
    lax.DotAlgorithmPreset.TF32_TF32_F32: ("float32", "default"),
    lax.DotAlgorithmPreset.TF32_TF32_F32_X3: ("float32", "highest"),
    lax.DotAlgorithmPreset.F32_F32_F32: ("float32", "highest"),
}
# Stands for a symbolic dimension when a kernel is chosen: odd, so that no alignment is taken for granted.
NOMINAL_SIZE = 127

BY_MODEL, NO_SPLIT = (0, 0), (0, 1)
"""How tiles and their K are shared (KSplit in cuda/gemm.h): as the model says, or each tile being one CTA's."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One dot_general with an epilogue, as far as choosing a kernel needs it."""

    lhs: jax.ShapeDtypeStruct
    rhs: jax.ShapeDtypeStruct
    out: jax.ShapeDtypeStruct
    dimension_numbers: DimensionNumbers
    precision: _compat.Precision = None
    activation: str = "none"
    has_alpha: bool = False
    has_bias: bool = False

    @staticmethod
    def of(lhs: Any, rhs: Any, out: Any, *, dimension_numbers: Any, precision: Any, **rest: Any) -> "Request":
        """That of JAX's own dot_general: of abstract arrays and the primitive's parameters."""
        lhs, rhs, out = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs, out))
        return Request(lhs, rhs, out, dimension_numbers, precision)

    def plan(self) -> Plan:
        return make_plan(len(self.lhs.shape), len(self.rhs.shape), self.dimension_numbers)

    @property
    def symbolic(self) -> bool:
        return not all(_compat.static_sizes(x.shape) for x in (self.lhs, self.rhs, self.out))


@dataclasses.dataclass(frozen=True)
class Choice:
    """The kernel to run, None for XLA's own dot, and why."""

    kernel: str | None
    reason: str
    precision: str = "default"
    split: tuple[int, int] = NO_SPLIT
    workspace_bytes: int = 0


def kernels() -> list[_core.KernelInfo]:
    """Every kernel of this build in ladder order, simplest first.

    Returns:
      A list whose entries have ``name`` ("family:config"; ``kernel=`` takes it or the family alone), ``family``,
      ``config``, ``min_sm`` and ``max_sm`` (compute capability times ten; ``max_sm == 0``: no upper limit), ``dtypes``
      ((lhs, rhs, out) names), ``layouts``, ``cta_tile`` and ``warp_tile`` ((m, n, k) elements), ``stages``,
      ``threads`` per CTA, ``smem_bytes`` per CTA, ``tf32`` (whether float32 operands are rounded to TF32 unless the
      precision is HIGHEST), ``highest`` (whether float32 and 8-bit floating-point operands are taken at HIGHEST),
      ``tma`` (whether operands must begin at multiples of 16 bytes, as XLA's do), ``cluster_ctas`` (CTAs that compute
      tiles below one another together), ``tiles_at_once`` (k-tiles that a warp loads before it multiplies the first of
      them), ``fused_epilogue`` and ``max_ctas`` (the most CTA tiles of one call).
    """
    return _core.kernels()


def _kernel_precision(precision: _compat.Precision, lhs_dtype: np.dtype) -> str | None:
    """Our precision for a canonical JAX precision, None if no kernel promises it."""
    if precision is None:
        return "default"
    if isinstance(precision, lax.DotAlgorithmPreset):
        if precision == lax.DotAlgorithmPreset.DEFAULT:
            return "default"
        dtype, kernel_precision = _ALGORITHMS.get(precision, (None, None))
        return kernel_precision if dtype == lhs_dtype.name else None
    if isinstance(precision, tuple) and not isinstance(precision, lax.DotAlgorithm):
        return "default" if all(p == lax.Precision.DEFAULT for p in precision) else "highest"
    return None


def why_no_problem(request: Request) -> str:
    """Why no kernel can be asked about a request at all, "" if one can."""
    names = _core.dtypes()
    for what, x in (("lhs", request.lhs), ("rhs", request.rhs), ("out", request.out)):
        if x.dtype.name not in names:
            return f"{what} is {x.dtype.name}; kernels exist for some of {', '.join(names)}"
    if _kernel_precision(request.precision, request.lhs.dtype) is None:
        return f"no kernel promises precision={request.precision} for {request.lhs.dtype.name} operands"
    return ""


def native_problem(request: Request, sm: int) -> _core.Problem:
    """The request as kernels see it, on a GPU of compute capability ``sm`` / 10; they can be asked about it.

    K is split as the model says, and operands are copied where that pays; not at all where sizes are only known at run
    time, as that of the workspace for sums and copies would be.
    """
    plan = request.plan()
    precision = _kernel_precision(request.precision, request.lhs.dtype)
    assert precision is not None  # why_no_problem was asked first

    def sizes(x: jax.ShapeDtypeStruct) -> list[int]:
        return [d if isinstance(d, int) else NOMINAL_SIZE for d in x.shape]

    return _core.Problem(
        lhs_sizes=sizes(request.lhs),
        lhs_dims=plan.lhs.native(),
        rhs_sizes=sizes(request.rhs),
        rhs_dims=plan.rhs.native(),
        out_sizes=sizes(request.out),
        out_dims=plan.out.native(),
        lhs_dtype=request.lhs.dtype.name,
        rhs_dtype=request.rhs.dtype.name,
        out_dtype=request.out.dtype.name,
        precision=precision,
        activation=request.activation,
        has_alpha=request.has_alpha,
        has_bias=request.has_bias,
        sm=sm,
        split=NO_SPLIT if request.symbolic else BY_MODEL,
        may_copy=not request.symbolic,
    )


def tuning_key(request: Request, problem: _core.Problem) -> Key | None:
    """What tuning tables know the request by, None if they have no say in it."""
    precision = _kernel_precision(request.precision, request.lhs.dtype)
    if request.symbolic or precision is None:
        return None
    return _tuning.key_of(problem, (request.lhs.dtype.name, request.rhs.dtype.name, request.out.dtype.name), precision)


def why_not(name: str, problem: _core.Problem, symbolic: bool) -> str:
    """Why a kernel cannot run a problem, "" if it can; ``symbolic``: some sizes are known at run time only."""
    sentence = _core.why_not(name, problem)
    if not sentence and symbolic and _core.workspace_bytes(name, problem):
        return "needs a workspace, whose size symbolic dimensions do not give"
    return sentence


def able_kernels(request: Request, problem: _core.Problem) -> list[str]:
    """Full names of the kernels that can run a request, in ladder order."""
    return [info.name for info in kernels() if not why_not(info.name, problem, request.symbolic)]


def check_name(kernel: str | None, infos: Sequence[_core.KernelInfo] | None = None, purpose: str = "") -> None:
    """Raises ValueError unless ``kernel`` is None or names one of ``infos`` (:func:`kernels`) or a family of theirs;
    ``purpose`` says in the message what they are for.
    """
    if kernel is None:
        return
    infos = kernels() if infos is None else infos
    known = list(dict.fromkeys(info.family for info in infos)) + [info.name for info in infos]
    if not isinstance(kernel, str) or kernel not in known:
        near = difflib.get_close_matches(str(kernel), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"kernel={kernel!r} is none of this build's kernels{purpose}: {', '.join(known)}.{hint}")


def preference(problem: _core.Problem) -> Callable[[str], tuple[int, float, int]]:
    """The key that sorts names of kernels as ``select`` prefers them: by rung, then cheap, then late ones."""
    names = [info.name for info in kernels()]

    def key(name: str) -> tuple[int, float, int]:
        return -_core.rung(name, problem), _core.estimated_cost(name, problem), -names.index(name)

    return key


def _reason(name: str, asked: str | None, able: list[str]) -> str:
    """What decided for ``name`` among those that are able, in ladder order."""
    if name == asked:
        return "named by the caller"
    family, _, config = name.partition(":")
    rungs = list(dict.fromkeys(other.partition(":")[0] for other in able))
    if asked is not None:
        rung = "of the family that the caller named"
    elif family == rungs[-1]:
        rung = f"{family} is the latest rung of the ladder that takes the problem"
    else:
        rung = f"{family} is the rung of the ladder that the model prefers"
    configs = sum(other.startswith(f"{family}:") for other in able)
    if configs == 1:
        return f"{rung}, {config} its only configuration that can"
    return f"{rung}, {config} the fastest by the model of its {configs} configurations that can"


def _measured(request: Request, problem: _core.Problem, family: str | None, able: list[str]) -> tuple[str, str] | None:
    """The kernel that was measured the fastest, and who says so; None where no table does."""
    device = device_kind(problem.sm)
    key = None if device is None else tuning_key(request, problem)
    if device is None or key is None:
        return None
    model = _core.select(problem)
    for entry, reason in _tuning.find(key, device):
        # Where the model would choose otherwise today, the row may never have been told of the kernel that it prefers.
        if entry.model_kernel == model and entry.kernel in able and family in (None, entry.kernel.partition(":")[0]):
            return entry.kernel, reason
    return None


def measured_faster(request: Request, sm: int) -> str | None:
    """The kernel that a tuning table of the attached GPU says to be faster than JAX's own product, of exactly this
    problem and by more than the margin; None where none says so, or it cannot run.
    """
    device = device_kind(sm)
    if device is None or request.symbolic or why_no_problem(request):
        return None
    problem = native_problem(request, sm)
    key = tuning_key(request, problem)
    if key is None:
        return None
    for entry, _ in _tuning.find(key, device):
        if entry.jax_us is not None:
            faster = _tuning.MARGIN * entry.us < entry.jax_us
            return entry.kernel if faster and not why_not(entry.kernel, problem, symbolic=False) else None
    return None


def choose(request: Request, kernel: str | None, sm: int) -> Choice:
    """The kernel for a request on a GPU of compute capability ``sm`` / 10: a measured one if that is the attached GPU
    and a tuning table knows the problem, else the model's.

    Args:
      kernel: None to choose among all, or the name of a kernel or family, which is then run or refused.

    Raises:
      ValueError: the named kernel does not exist or cannot run the request; the message says why and which can.
    """
    check_name(kernel)
    no_problem = why_no_problem(request)
    if no_problem:
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} cannot run this: {no_problem}. Leave kernel=None for XLA's own dot.")
        return Choice(None, no_problem)
    problem = native_problem(request, sm)
    verdicts = {info.name: why_not(info.name, problem, request.symbolic) for info in kernels()}
    able = [name for name, sentence in verdicts.items() if not sentence]
    name = kernel if kernel in verdicts else _core.select(problem, kernel or "")
    if kernel is None and able and name not in able:  # select() does not know what symbolic dimensions forbid
        name = min(able, key=preference(problem))
    if not name or name not in able:
        if kernel is None:
            return Choice(None, f"no kernel takes {problem}")
        why = verdicts.get(name) or next(v for n, v in verdicts.items() if n == kernel or n.startswith(kernel + ":"))
        can = f"kernels that can: {', '.join(able)}" if able else "no kernel can; leave kernel=None for XLA's own dot"
        raise ValueError(f"kernel={kernel!r} cannot run {problem}: it {why}; {can}.")
    precision = _kernel_precision(request.precision, request.lhs.dtype)
    assert precision is not None
    measured = None if name == kernel else _measured(request, problem, kernel, able)
    name, reason = measured or (name, _reason(name, kernel, able))
    return Choice(name, reason, precision, _core.k_split(name, problem), _core.workspace_bytes(name, problem))


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What :func:`explain` returns; ``str()`` of it is meant for people.

    Attributes:
      kernel: full name of the kernel that would run, None for XLA's own dot.
      reason: why.
      problem: the GEMM in words.
      candidates: kernel name -> "" if it could run, else why not; in ladder order.
      costs: kernel name -> the time that the model expects, as a multiple of the chosen kernel's; only of those that
        could run, the preferred ones first.
    """

    kernel: str | None
    reason: str
    problem: str
    candidates: dict[str, str]
    costs: dict[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        lines = [self.problem, f"  runs {self.kernel or 'XLA dot'}: {self.reason}"]
        lines += [
            f"  {name}: could run, in {cost:.3g} times the time by the model"
            for name, cost in self.costs.items()
            if name != self.kernel
        ]
        lines += [f"  {name}: {why}" for name, why in self.candidates.items() if why]
        return "\n".join(lines)


def relative(costs: dict[str, float], kernel: str | None) -> dict[str, float]:
    """Costs as multiples of that of a kernel, which comes first; the caller may have named another than the first."""
    chosen = costs.get(kernel or "") or 1.0  # an empty problem costs nothing
    names = sorted(costs, key=lambda name: name != kernel)
    return {name: costs[name] / chosen if costs[name] else 1.0 for name in names}


def explain_request(request: Request, kernel: str | None, sm: int) -> Explanation:
    """The explanation of one request; errors as :func:`choose` raises them."""
    choice = choose(request, kernel, sm)
    no_problem = why_no_problem(request)
    if no_problem:
        text = f"{request.lhs.dtype.name}{list(request.lhs.shape)} x {request.rhs.dtype.name}{list(request.rhs.shape)}"
        return Explanation(None, no_problem, text, {info.name: no_problem for info in kernels()})
    problem = native_problem(request, sm)
    candidates = {info.name: why_not(info.name, problem, request.symbolic) for info in kernels()}
    able = sorted((name for name, why in candidates.items() if not why), key=preference(problem))
    costs = {name: _core.estimated_cost(name, problem) for name in able}
    return Explanation(
        choice.kernel, choice.reason, f"{problem} on sm_{sm}", candidates, relative(costs, choice.kernel)
    )


def explain(lhs: Any, rhs: Any, **kwargs: Any) -> Explanation:
    """Says which kernel ``jaxgemm.matmul(lhs, rhs, **kwargs)`` would run on the GPU here, and why not the others.

    Nothing is computed: operands, alpha and bias may be arrays or ``jax.ShapeDtypeStruct``. Without a GPU the answer is
    the portable choice, the one an exported program would carry.

    Args:
      lhs, rhs: as for :func:`jaxgemm.matmul`, quantised weights included.
      **kwargs: as for :func:`jaxgemm.matmul`; and ``function=``, another function of two operands to ask about, e.g.
        ``jaxgemm.dot_general`` with its ``dimension_numbers=``, or ``functools.partial(jaxgemm.einsum, "ij,jk->ik")``.

    Returns:
      An :class:`Explanation`; of the first GEMM, where the call makes several.

    Raises:
      TypeError, ValueError: what the call itself would raise.
    """
    from jaxgemm._matmul import matmul

    function: Callable[..., Any] = kwargs.pop("function", matmul)
    return _explainers(function, (lhs, rhs), kwargs)[0](target_sm())


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    values = [x for value in params.values() for x in (value if isinstance(value, list | tuple) else [value])]
    return [getattr(x, "jaxpr", x) for x in values if hasattr(getattr(x, "jaxpr", x), "eqns")]


def _explainers(
    function: Callable[..., Any], operands: Sequence[Any], kwargs: dict[str, Any]
) -> list[Callable[[int], Explanation]]:
    """What explains, for a GPU, each GEMM that a call binds: they are read off its jaxpr."""
    from jaxgemm import _mixed, _primitives
    from jaxgemm._mixed_choose import explain_mixed
    from jaxgemm._quant import QuantizedMatrix

    def shaped(x: Any) -> Any:
        if isinstance(x, QuantizedMatrix):
            return jax.tree.map(shaped, x)
        if not isinstance(x, jax.ShapeDtypeStruct):
            x = jnp.asarray(x)
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    described = {name: x for name, x in kwargs.items() if isinstance(x, jax.ShapeDtypeStruct)}
    given = {name: x for name, x in kwargs.items() if name not in described}

    def call(lhs: Any, rhs: Any, described: dict[str, Any]) -> Any:
        return function(lhs, rhs, **described, **given)

    jaxpr = jax.make_jaxpr(call)(*map(shaped, operands), described)

    def walk(inner: Any) -> list[Callable[[int], Explanation]]:
        found = []
        for equation in inner.eqns:
            for request_of, explain_one in (
                (_primitives.request_of, explain_request),
                (_mixed.request_of, explain_mixed),
            ):
                request = request_of(equation)
                if request is not None:
                    found.append(functools.partial(explain_one, *request))
            for sub in sub_jaxprs(equation.params):
                found += walk(sub)
        return found

    found = walk(jaxpr.jaxpr)
    if not found:
        raise ValueError(f"{getattr(function, '__name__', function)} binds no GEMM of jaxgemm")
    return found
