"""The shapes that tests, benchmarks and tuning share.

Importing this needs neither JAX nor a GPU; dtypes are NumPy names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import jax

Layout: TypeAlias = Literal["NN", "NT", "TN", "TT"]
Precision: TypeAlias = Literal["default", "highest"]
Activation: TypeAlias = Literal["silu", "gelu_tanh", "gelu_erf"]
Suite: TypeAlias = Literal["ladder", "dense", "random", "int4"]
DimensionNumbers: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SUITES: tuple[Suite, ...] = get_args(Suite)

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}
OUT_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int32",
    "float8_e4m3fn": "bfloat16",
}
"""Output dtype that the benchmarks ask for, by operand dtype."""


@dataclass(frozen=True)
class Problem:
    """``batch`` products (m x k) times (k x n); ``layout`` says how each operand lies: N as written, T transposed.

    A bias, of n elements and the dtype of the output, and an activation may follow.
    """

    batch: int
    m: int
    n: int
    k: int
    layout: Layout
    lhs_dtype: str
    rhs_dtype: str
    out_dtype: str
    precision: Precision
    bias: bool = False
    activation: Activation | None = None

    @property
    def label(self) -> str:
        """For messages and ``--filter``, e.g. "bfloat16 64x512x512x512 NN"."""
        batch = f"{self.batch}x" if self.batch > 1 else ""
        dtype = self.lhs_dtype if self.lhs_dtype == self.rhs_dtype else f"{self.lhs_dtype},{self.rhs_dtype}"
        highest = " highest" if self.precision == "highest" else ""
        out = "" if self.out_dtype == OUT_DTYPES.get(self.lhs_dtype) else f" to {self.out_dtype}"
        epilogue = " bias" * self.bias + (f" {self.activation}" if self.activation else "")
        return f"{dtype} {batch}{self.m}x{self.n}x{self.k} {self.layout}{highest}{out}{epilogue}"

    @property
    def dtype_label(self) -> str:
        """The operand dtype, for float32 with the precision: kernels are compared where this is the same."""
        return f"{self.lhs_dtype}, {self.precision}" if self.lhs_dtype == "float32" else self.lhs_dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes to move if both operands are read once and the output is written once."""
        lhs = self.m * self.k * ITEM_BYTES[self.lhs_dtype]
        rhs = self.k * self.n * ITEM_BYTES[self.rhs_dtype]
        return self.batch * (lhs + rhs + self.m * self.n * ITEM_BYTES[self.out_dtype])

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        return self.min_bytes - self.batch * self.m * self.n * ITEM_BYTES[self.out_dtype]

    @property
    def lhs_shape(self) -> tuple[int, ...]:
        """Shape of lhs as it is stored; the batch is a dimension only if there are several."""
        return self._batch_shape + ((self.m, self.k) if self.layout[0] == "N" else (self.k, self.m))

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        """Shape of rhs as it is stored."""
        return self._batch_shape + ((self.k, self.n) if self.layout[1] == "N" else (self.n, self.k))

    @property
    def lhs_m_axis(self) -> int:
        """The axis of the stored lhs that runs over the rows of the product."""
        return len(self._batch_shape) + (0 if self.layout[0] == "N" else 1)

    @property
    def dimension_numbers(self) -> DimensionNumbers:
        """What makes ``lax.dot_general(lhs, rhs, ...)`` of the stored operands the product."""
        first = len(self._batch_shape)
        lhs_k = first + (1 if self.layout[0] == "N" else 0)
        rhs_k = first + (0 if self.layout[1] == "N" else 1)
        batch = tuple(range(first))
        return ((lhs_k,), (rhs_k,)), (batch, batch)

    @property
    def _batch_shape(self) -> tuple[int, ...]:
        return (self.batch,) if self.batch > 1 else ()

    def _stored(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of lhs, rhs and, if there is one, bias."""
        operands = [(self.lhs_shape, self.lhs_dtype), (self.rhs_shape, self.rhs_dtype)]
        return operands + [((self.n,), self.out_dtype)] * self.bias

    def operand_specs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the stored operands, for lowering."""
        import jax

        return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self._stored())

    def operands(self, seed: int) -> tuple[jax.Array, ...]:
        """Random operands as they are stored: normal, or uniform for integers."""
        from jaxgemm._timing import random_array

        return tuple(random_array(3 * seed + i, *stored) for i, stored in enumerate(self._stored()))


def problem(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    *,
    batch: int = 1,
    layout: Layout = "NN",
    precision: Precision = "default",
    bias: bool = False,
    activation: Activation | None = None,
) -> Problem:
    """A problem whose operands share one dtype and whose output is that of OUT_DTYPES."""
    return Problem(batch, m, n, k, layout, dtype, dtype, OUT_DTYPES[dtype], precision, bias, activation)


LADDER_SIZE = 4096
"""Every kernel configuration is measured at this size; the best of each family at LADDER_MORE_SIZES as well."""
LADDER_MORE_SIZES = (1024, 8192)
LADDER_ROWS = [
    problem(1, 128, 2048, "float32", batch=256, precision="highest"),
    problem(1, 128, 2048, batch=256),
]
"""Probabilities times values, of attention with one query: for kernels that compute single rows. They read rhs once
for every row.
"""


def ladder() -> list[Problem]:
    """Squares in every dtype, float32 at both precisions; and LADDER_ROWS.

    float32 at DEFAULT is for the kernels that round to TF32: the others would do there what they do at HIGHEST.
    The layout is NN; for int8, XLA's dot transposes rhs first, and its time includes that.
    """
    kinds: list[tuple[str, Precision]] = [("float32", "highest"), *((dtype, "default") for dtype in OUT_DTYPES)]
    squares = [
        problem(size, size, size, dtype, precision=precision)
        for size in (LADDER_SIZE, *LADDER_MORE_SIZES)
        for dtype, precision in kinds
    ]
    return squares + LADDER_ROWS


def every_configuration(problem: Problem) -> bool:
    """Whether all configurations of a kernel are measured on a problem of the ladder, and not only the best."""
    return problem.m == LADDER_SIZE or problem in LADDER_ROWS


LAYERS_NK = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (8192, 28672), (10240, 8192))
"""(N, K) of the linear layers of published language models."""
LAYERS_M = (1, 16, 64, 128, 512, 2048, 8192)


def _layers(m_min: int, m_max: int) -> list[Problem]:
    return [problem(m, n, k) for n, k in LAYERS_NK for m in LAYERS_M if m_min <= m <= m_max]


def _epilogues() -> list[Problem]:
    """The first layer of a feed-forward block, as its users write it."""
    fused: list[tuple[bool, Activation | None]] = [
        (True, None), (False, "silu"), (True, "gelu_tanh"), (False, "gelu_erf"),
    ]  # fmt: skip
    return [problem(m, 14336, 4096, bias=bias, activation=name) for bias, name in fused for m in (1, 64, 512, 2048)]


def _both_layouts(shapes: tuple[tuple[int, int, int], ...], dtype: str) -> list[Problem]:
    layouts: tuple[Layout, ...] = ("NT", "NN")
    return [problem(*shape, dtype, layout=layout) for shape in shapes for layout in layouts]


def dense_groups() -> dict[str, list[Problem]]:
    """The dense suite by the groups that its results are averaged over."""
    irregular = ((4095, 4095, 4095), (1000, 1000, 1000), (8192, 8192, 8191), (127, 8192, 8192), (256, 256, 65536))
    squares: dict[int, tuple[int, int, int]] = {size: (size, size, size) for size in (1024, 4096, 8192)}
    float32: tuple[Precision, ...] = ("default", "highest")
    return {
        "bfloat16 squares": [problem(size, size, size) for size in (512, 1024, 2048, 4096, 8192, 16384)],
        "bfloat16 layers, M <= 64": _layers(1, 64),
        "bfloat16 layers, M 128 to 512": _layers(128, 512),
        "bfloat16 layers, M >= 2048": _layers(2048, 8192),
        "bfloat16 irregular": [problem(*shape) for shape in irregular],
        "bfloat16 batched": [problem(512, 512, 512, batch=64)],
        "bfloat16 with bias or activation": _epilogues(),
        "float16": [problem(*squares[size], "float16") for size in (4096, 8192)],
        **{
            f"float32 {precision}": [problem(*squares[s], "float32", precision=precision) for s in squares]
            for precision in float32
        },
        "int8": _both_layouts((squares[4096], squares[8192]), "int8"),
        "float8_e4m3fn": _both_layouts((squares[4096], squares[8192], (64, 28672, 8192)), "float8_e4m3fn"),
    }


def dense() -> list[Problem]:
    """The dense suite: what users multiply, in every dtype."""
    return [problem for group in dense_groups().values() for problem in group]


RANDOM_PROBLEMS = 16
"""In each group of the random suite."""
_RANDOM_SEED = 0
_RANDOM_MAX_BYTES, _RANDOM_MAX_FLOPS = 2**31, 2**41
_TOKENS = (1, 2, 5, 8, 16, 33, 64, 100, 128, 197, 256, 333, 512, 577, 1000, 1500, 2048, 4096)
_WIDTHS = (384, 768, 896, 1024, 1152, 2048, 2304, 2560, 3072, 3584, 4096, 4864, 5120, 6144, 8192, 14336, 18944)
_BATCHES = (4, 8, 12, 16, 32, 64, 96, 128, 256, 512)
_SEQUENCES = (49, 77, 128, 197, 256, 384, 512, 577, 1024)
_HEADS = (32, 64, 80, 96, 128, 256)
_EXPERTS = (8, 16, 60, 64)
_EXPERTS_NK = ((1408, 2048), (2048, 1408), (1536, 5120), (768, 2048), (2048, 768), (4096, 1024), (14336, 4096))
_SIZES = (3, 77, 80, 100, 160, 192, 333, 577, 1000, 2050, 3002, 4095, 4097, 8191, 50257)
_RANDOM_DTYPES: dict[tuple[str, str, Precision], int] = {
    ("bfloat16", "bfloat16", "default"): 6,
    ("bfloat16", "float32", "default"): 1,
    ("float16", "float16", "default"): 1,
    ("float32", "float32", "default"): 1,
    ("float32", "float32", "highest"): 1,
}
"""Operands, result and precision, and how often of ten times."""


def _drawn_layer(rng: random.Random) -> Problem:
    """A linear layer, with its weights either way, or the gradient by its weights."""
    m, n, k = rng.choice(_TOKENS), rng.choice(_WIDTHS), rng.choice(_WIDTHS)
    layouts: tuple[Layout, ...] = ("NN", "NT", "TN")
    layout = rng.choice(layouts)
    return problem(k, n, m, layout=layout) if layout == "TN" else problem(m, n, k, layout=layout)


def _drawn_attention(rng: random.Random, queries: int | None = None) -> Problem:
    """Scores, or the values weighted by them, of all heads; of all queries unless it is said how many."""
    batch, sequence, head = rng.choice(_BATCHES), rng.choice(_SEQUENCES), rng.choice(_HEADS)
    if rng.random() < 0.5:
        return problem(queries or sequence, sequence, head, batch=batch, layout="NT")
    return problem(queries or sequence, head, sequence, batch=batch)


def _drawn_experts(rng: random.Random) -> Problem:
    """A layer of several experts, each with as many tokens."""
    layouts: tuple[Layout, ...] = ("NN", "NT")
    n, k = rng.choice(_EXPERTS_NK)
    return problem(rng.choice(_TOKENS), n, k, batch=rng.choice(_EXPERTS), layout=rng.choice(layouts))


def _drawn_sizes(rng: random.Random) -> Problem:
    """Any sizes, most of them no multiples of a vector."""
    m, n, k = (rng.choice(_SIZES) for _ in range(3))
    return problem(m, n, k, batch=rng.choice((1, 1, 4, 16)), layout=rng.choice(LAYOUTS))


_DRAWN: dict[str, Callable[[random.Random], Problem]] = {
    "layers": _drawn_layer,
    "attention": _drawn_attention,
    "attention, one query": lambda rng: _drawn_attention(rng, queries=1),
    "experts": _drawn_experts,
    "any sizes": _drawn_sizes,
}


def random_groups() -> dict[str, list[Problem]]:
    """The random suite by what its problems are of: drawn, and so not what anything was tuned for; always the same."""
    rng = random.Random(_RANDOM_SEED)
    groups: dict[str, list[Problem]] = {}
    for name, draw in _DRAWN.items():
        drawn: dict[Problem, None] = {}
        while len(drawn) < RANDOM_PROBLEMS:
            dtype, out_dtype, precision = rng.choices(list(_RANDOM_DTYPES), list(_RANDOM_DTYPES.values()))[0]
            found = replace(draw(rng), lhs_dtype=dtype, rhs_dtype=dtype, out_dtype=out_dtype, precision=precision)
            if found.min_bytes <= _RANDOM_MAX_BYTES and found.flops <= _RANDOM_MAX_FLOPS:
                drawn[found] = None
        groups[name] = list(drawn)
    return groups


def random_suite() -> list[Problem]:
    """The random suite."""
    return [problem for group in random_groups().values() for problem in group]


INT4_BITS = 4


@dataclass(frozen=True)
class MixedProblem:
    """x (m x k) of ``dtype`` times a matrix (k x n) of 4-bit codes, with a scale of ``dtype`` to each group of rows.

    ``zeros``: whether each group has a zero point, an integer of one byte. The result is of ``dtype``.
    """

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    group_size: int = 128
    zeros: bool = False

    @property
    def label(self) -> str:
        """For messages and ``--filter``, e.g. "bfloat16,int4 16x28672x4096 g128"."""
        return f"{self.dtype},int4 {self.m}x{self.n}x{self.k} g{self.group_size}" + " zeros" * self.zeros

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> int:
        """Codes, scales and zero points."""
        groups = -(-self.k // self.group_size)
        return self.k * self.n * INT4_BITS // 8 + groups * self.n * (ITEM_BYTES[self.dtype] + self.zeros)

    @property
    def min_bytes(self) -> int:
        """Bytes to move if x and the weights are read once and the output is written once."""
        return self.weight_bytes + (self.m * self.k + self.m * self.n) * ITEM_BYTES[self.dtype]

    @property
    def dense(self) -> Problem:
        """The product with a matrix of ``dtype``."""
        return problem(self.m, self.n, self.k, self.dtype)

    @property
    def plain(self) -> MixedProblem:
        """The same shape as it is measured of all shapes: what the variants are compared with."""
        return MixedProblem(self.m, self.n, self.k)

    @property
    def is_plain(self) -> bool:
        return self == self.plain


INT4_SMALL_NK = ((6144, 4096), (4096, 4096))
INT4_VARIANTS_NK = ((28672, 4096), (8192, 28672))
INT4_NK = (*INT4_SMALL_NK, INT4_VARIANTS_NK[0], (4096, 14336), (10240, 8192), (57344, 8192), INT4_VARIANTS_NK[1])
"""(N, K): linear layers of Llama-3-8B and -70B, with the projections of q, k, v and of gate and up joined."""
INT4_M = tuple(2**i for i in range(14))
INT4_XLA_M = (1, 16, 64, 256, 2048)
"""Where XLA's own int4 is measured: it takes long to compile."""
INT4_VARIANTS_M = (1, 16, 64)
INT4_VARIANTS: dict[str, dict[str, Any]] = {
    "zero points": {"zeros": True},
    "groups of 64": {"group_size": 64},
    "groups of 32": {"group_size": 32},
    "float16": {"dtype": "float16"},
}
"""What each variant changes of the plain problem."""


def int4() -> list[MixedProblem]:
    """Weights of 4 bits: all problems of a matrix follow each other, as making it takes longer than multiplying it."""
    problems = []
    for n, k in INT4_NK:
        problems += [MixedProblem(m, n, k) for m in INT4_M]
        if (n, k) in INT4_VARIANTS_NK:
            problems += [MixedProblem(m, n, k, **change) for change in INT4_VARIANTS.values() for m in INT4_VARIANTS_M]
    return problems


AnyProblem: TypeAlias = Problem | MixedProblem


def suite(name: Suite) -> Sequence[AnyProblem]:
    """The problems of a suite, in the order they are run and listed."""
    return {"ladder": ladder, "dense": dense, "random": random_suite, "int4": int4}[name]()
