"""Which kernel multiplies by quantised weights, and why not the others."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxgemm import _compat
from jaxgemm._choose import BY_MODEL, NO_SPLIT, NOMINAL_SIZE, Choice, Explanation, check_name, relative, why_not
from jaxgemm._mixed_local import Form
from jaxgemm._native import _core

DEQUANTISED = "XLA dequantises the weights and multiplies"


def mixed_kernels() -> list[_core.KernelInfo]:
    """Every kernel of this build that multiplies by quantised weights.

    Returns:
      A list whose entries are like those of :func:`jaxgemm.kernels`, with ``bits`` (of the codes that it takes) and
      ``group_multiple`` (it takes groups of a multiple of so many rows, or of whole columns).
    """
    return _core.mixed_kernels()


def check_mixed_name(kernel: str | None) -> None:
    """Raises ValueError unless ``kernel`` is None or names a kernel or a family for quantised weights."""
    check_name(kernel, mixed_kernels(), " for quantised weights")


@dataclasses.dataclass(frozen=True)
class MixedRequest:
    """One product, as far as choosing a kernel needs it; operands as ``mixed_gemm_p`` takes them."""

    x: Any
    packed: Any
    scales: Any
    zeros: Any
    form: Form
    has_bias: bool

    @classmethod
    def of(cls, operands: Sequence[Any], form: Form) -> "MixedRequest":
        """From what the primitive is bound to."""
        x, packed, scales, *rest = operands
        zeros = rest.pop(0) if form.has_zeros else None
        return cls(x, packed, scales, zeros, form, has_bias=len(rest) > form.has_alpha)

    @property
    def zeros_name(self) -> str:
        """What kernels call the zero points."""
        if self.zeros is None:
            return "middle"
        return "integer" if self.zeros.dtype.name == "uint8" else "float"

    @property
    def symbolic(self) -> bool:
        return not _compat.static_sizes((*self.x.shape, *self.packed.shape))

    def why_no_problem(self) -> str:
        """Why no kernel can be asked about it at all, "" if one can."""
        names = _core.dtypes()
        for what, dtype in (("lhs", self.x.dtype), ("the result", self.form.out_dtype)):
            if dtype.name not in names:
                return f"{what} is {dtype.name}; kernels exist for some of {', '.join(names)}"
        return ""

    def problem(self, sm: int) -> _core.Problem:
        """The same as kernels see it, on a GPU of compute capability ``sm`` / 10."""
        form, nb = self.form, self.packed.ndim - 3
        return _core.mixed_problem(
            batch=_product(self.packed.shape[:nb]),
            m=_product(self.x.shape[nb:-1]),
            n=form.n,
            k=form.k,
            lhs_dtype=self.x.dtype.name,
            out_dtype=form.out_dtype.name,
            activation=form.activation,
            has_alpha=form.has_alpha,
            has_bias=self.has_bias,
            bits=form.bits,
            group_size=form.group_size,
            scale_dtype=self.scales.dtype.name,
            zeros=self.zeros_name,
            sm=sm,
            split=NO_SPLIT if self.symbolic else BY_MODEL,
        )

    def verdicts(self, problem: _core.Problem) -> dict[str, str]:
        """Of each kernel "" if it can run the product, else why not."""
        return {info.name: why_not(info.name, problem, self.symbolic) for info in mixed_kernels()}


def choose_mixed(request: MixedRequest, kernel: str | None, sm: int) -> Choice:
    """The kernel for one call on a GPU of compute capability ``sm`` / 10.

    Raises:
      ValueError: the named kernel does not exist or cannot run this; the message says why and which can.
    """
    check_mixed_name(kernel)
    no_problem = request.why_no_problem()
    if no_problem:
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} cannot run this: {no_problem}. With kernel=None {DEQUANTISED}.")
        return Choice(None, f"{no_problem}: {DEQUANTISED}")
    problem = request.problem(sm)
    verdicts = request.verdicts(problem)
    able = [name for name, sentence in verdicts.items() if not sentence]
    if kernel in verdicts:
        name = kernel if kernel in able else ""
    else:
        name = _core.select(problem, kernel or "")
        if name not in able:
            of_family = [other for other in able if kernel in (None, other.partition(":")[0])]
            name = min(of_family, key=lambda other: _core.estimated_cost(other, problem), default="") if name else ""
    if not name:
        if kernel is None:
            return Choice(None, f"no kernel takes {problem}: {DEQUANTISED}")
        asked = (sentence for other, sentence in verdicts.items() if kernel in (other, other.partition(":")[0]))
        can = f"kernels that can: {', '.join(able)}" if able else f"no kernel can; with kernel=None {DEQUANTISED}"
        raise ValueError(f"kernel={kernel!r} cannot run {problem}: it {next(asked)}; {can}.")
    reason = "named by the caller" if name == kernel else "the fastest by the model"
    return Choice(name, reason, "default", _core.k_split(name, problem), _core.workspace_bytes(name, problem))


def explain_mixed(request: MixedRequest, kernel: str | None, sm: int) -> Explanation:
    """The explanation of one product; errors as :func:`choose_mixed` raises them."""
    choice = choose_mixed(request, kernel, sm)
    no_problem = request.why_no_problem()
    if no_problem:
        text = f"{request.x.dtype.name}{list(request.x.shape)} x quantised weights {request.form.k}x{request.form.n}"
        return Explanation(None, choice.reason, text, {info.name: no_problem for info in mixed_kernels()})
    problem = request.problem(sm)
    candidates = request.verdicts(problem)
    costs = {name: _core.estimated_cost(name, problem) for name, why in candidates.items() if not why}
    return Explanation(
        choice.kernel, choice.reason, f"{problem} on sm_{sm}", candidates, relative(costs, choice.kernel)
    )


def _product(sizes: Sequence[Any]) -> int:
    """Of dimensions; symbolic ones count as a nominal size."""
    return math.prod(d if isinstance(d, int) else NOMINAL_SIZE for d in sizes)
