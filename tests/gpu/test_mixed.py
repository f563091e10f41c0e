"""Every kernel of quantised weights at the edges of its tiles, and what JAX's transforms make of them."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import formats
from jaxgemm._native import MIXED_TARGET, _core
from tests.gpu.mixed import (
    FAMILIES,
    FIRST,
    LAST,
    MIXED,
    MIXED_IDS,
    MIXED_INFO,
    RANDOM_PROGRAMS,
    MixedCase,
    MixedProgram,
    column_unit,
    dtypes_of,
    edge_cases,
    random_cases,
    raw_mixed_call,
    split_results,
)
from tests.gpu.report import RecordError
from tests.gpu.support import poison_free_memory
from tests.quantised import WHOLE, Weights, mixed_error_ratio, rounding_of, unit_roundoff
from tests.values import EPILOGUES, EXACT_ALPHA, assert_equal, error_ratio, nan_bytes, normals, rounded

pytestmark = pytest.mark.gpu

DTYPE = "bfloat16"
_REDZONE_BYTES = 4096
SPLITTING = [info for info in MIXED if info.split_k]
WRITING = [*LAST, *(info for info in MIXED if not info.split_k and info not in LAST)]
"""The ways out of the kernels."""
_over_kernels = pytest.mark.parametrize("info", MIXED, ids=MIXED_IDS)
_over_first = pytest.mark.parametrize("info", FIRST, ids=FAMILIES)
_over_last = pytest.mark.parametrize("info", LAST, ids=FAMILIES)


@pytest.mark.parametrize(
    ("info", "dtype"),
    [(info, dtype) for info in MIXED for dtype in dtypes_of(info)],
    ids=[f"{info.name}-{dtype}" for info in MIXED for dtype in dtypes_of(info)],
)
def test_edge_shapes(info: Any, dtype: str, rng: np.random.Generator, record_error: RecordError) -> None:
    """Small integers exactly, normal values within their bounds."""
    cases = edge_cases(info, dtype)
    program = MixedProgram(cases, dtype, [info.name] * len(cases))

    operands = program.draw(rng, exact=True)
    program.check_exact(operands, program(operands))

    operands = program.draw(rng)
    record_error(info.name, program.ratios(operands, program(operands))[info.name])


# --- splits, memory, sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", SPLITTING, ids=[info.name for info in SPLITTING])
def test_splits_and_workspace(info: Any, rng: np.random.Generator) -> None:
    """Parts of K of one and of several k-tiles, and of none; output and workspace full of NaN, a redzone behind."""
    tile_m, tile_n, tile_k = info.cta_tile
    counts = [(5, (0, 2)), (5, (0, 3)), (5, (0, 4)), (5, (0, 5)), (9, (0, 8))]  # k-tiles, and how they are shared
    if info.stream_k:  # by all CTAs: of the four tiles, or of two
        counts += [(5, (0, 9)), (16, (0, 64)), (9, (2, 10))]
    cases = [
        MixedCase(tile_m + 1, tile_n + column_unit(info, zeros), tiles * tile_k - 27, 128, zeros, out=DTYPE)
        for (tiles, _), zeros in zip(counts, ("middle", "integer") * 4, strict=False)
    ]
    operands = []
    for case in cases:
        x, weights = case.draw(rng, DTYPE, exact=True)
        operands.append((x[None], weights.alone()))
    results = [
        split_results(info.name, case, DTYPE, split, _REDZONE_BYTES)
        for case, (_, split) in zip(cases, counts, strict=True)
    ]

    def run(operands: Any, poison: Any) -> list[list[jax.Array]]:
        return [
            raw_mixed_call(result, x, matrix, info.name, split)
            for result, (x, matrix), (_, split) in zip(results, operands, counts, strict=True)
        ]

    arrays = [(x, weights.matrix()) for x, weights in operands]
    poison = jax.device_put([[nan_bytes(r.shape, r.dtype) for r in result] for result in results])
    outs = jax.device_get(jax.jit(run, donate_argnums=1, keep_unused=True)(arrays, poison))
    for (x, weights), out, count in zip(operands, outs, counts, strict=True):
        assert_equal(out[0], rounded(x.astype(np.float64) @ weights.dense(), DTYPE), f"{info.name} {count}")
        redzones = [workspace[-_REDZONE_BYTES:] for workspace in out[1:]]
        assert all((redzone == 0xFF).all() for redzone in redzones), f"{count}: wrote past the workspace"


def test_slices_of_nan_arrays(rng: np.random.Generator) -> None:
    """Operands that XLA cuts out of arrays of NaN and of other codes, in place where it can: one layer of a stack."""
    m, n, k = 9, 80, 200
    x, weights = MixedCase(m, n, k, 64, "integer").draw(rng, DTYPE, exact=True)
    matrix = weights.matrix()

    def stack(array: np.ndarray) -> np.ndarray:
        stacked = nan_bytes((3, *array.shape), array.dtype).copy()
        stacked[1] = array
        return stacked

    @jax.jit
    def run(x: jax.Array, matrix: Any, i: jax.Array) -> list[jax.Array]:
        at = [jax.tree.map(lambda array, index=index: array[index], (x, matrix)) for index in (1, i)]
        return [
            jaxgemm.matmul(*operands, preferred_element_type=np.float32, kernel=name)
            for name in MIXED_IDS
            for operands in at
        ]

    poison_free_memory()
    expected = rounded(x.astype(np.float64) @ weights.dense(), "float32")
    outs = run(stack(x), jax.tree.map(stack, matrix), np.int32(1))
    for i, out in enumerate(outs):
        assert_equal(np.asarray(out), expected, f"{MIXED_IDS[i // 2]} {i % 2}")


def test_empty(rng: np.random.Generator) -> None:
    """No tokens, columns or experts give nothing; K = 0 gives activation(bias), whatever alpha."""
    bias = np.arange(-8, 8, dtype=np.float32)
    empty = [((0, 64), (64, 16)), ((3, 64), (64, 0)), ((0, 3, 64), (0, 64, 16)), ((0, 0), (0, 0))]
    without_k = [((3, 0), (0, 16)), ((2, 3, 0), (2, 0, 16))]

    def operands_of(lhs: Any, rhs: Any) -> tuple[np.ndarray, Any]:
        return np.ones(lhs, np.dtype(DTYPE)), Weights.random(rng, rhs, WHOLE, "integer", DTYPE).matrix()

    nothing = [operands_of(*shapes) for shapes in empty]
    sums = [operands_of(*shapes) for shapes in without_k]

    @jax.jit
    def run(nothing: Any, sums: Any, bias: Any) -> list[list[jax.Array]]:
        return [
            [jaxgemm.matmul(*pair, kernel=name) for pair in nothing]
            + [
                jaxgemm.matmul(*pair, alpha=alpha, bias=bias, activation="relu", kernel=name)
                for pair in sums
                for alpha in (None, -2.5)
            ]
            for name in MIXED_IDS
        ]

    poison_free_memory()
    for name, outs in zip(MIXED_IDS, jax.device_get(run(nothing, sums, bias.astype(np.dtype(DTYPE)))), strict=True):
        for (lhs, rhs), out in zip(empty, outs, strict=False):
            assert out.shape == np.matmul(np.ones(lhs), np.ones(rhs)).shape, name
        for out in outs[len(empty) :]:
            np.testing.assert_array_equal(out.astype(np.float32), np.broadcast_to(np.maximum(bias, 0), out.shape), name)


def test_a_bias_for_each_of_the_experts(rng: np.random.Generator) -> None:
    """By vmap, and of a shape that broadcasts over the tokens: bit for bit, of numbers whose sums are exact."""
    cases = [MixedCase(m, 272, 200, 64, "integer", experts=True) for m in (1, 5, 70)]
    drawn = [case.draw(rng, DTYPE, exact=True) for case in cases]
    biases = [rng.integers(-64, 65, (len(x), weights.n)).astype(np.float32) for x, weights in drawn]
    operands = [(x, weights.matrix(), bias) for (x, weights), bias in zip(drawn, biases, strict=True)]

    def pair(x: jax.Array, matrix: Any, bias: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
        layer = functools.partial(
            jaxgemm.matmul, alpha=EXACT_ALPHA, activation="relu", preferred_element_type=np.float32, kernel=name
        )
        by_vmap = jax.vmap(lambda x, w, b: layer(x, w, bias=b))(x, matrix, bias)
        return by_vmap, layer(x, matrix, bias=bias[:, None])

    run = jax.jit(lambda operands: [[pair(*each, name) for each in operands] for name in MIXED_IDS])
    text = run.lower(operands).as_text()
    assert text.count("custom_call @jaxgemm") == text.count('activation = "relu"') == 2 * len(cases) * len(MIXED_IDS)
    exact = [
        rounded(np.maximum(EXACT_ALPHA * (x.astype(np.float64) @ weights.dense()) + bias[:, None], 0), "float32")
        for (x, weights), bias in zip(drawn, biases, strict=True)
    ]
    poison_free_memory()
    for name, outs in zip(MIXED_IDS, jax.device_get(run(operands)), strict=True):
        for case, both, expected in zip(cases, outs, exact, strict=True):
            for out in both:
                assert_equal(out, expected, f"{name} {case}")


@pytest.mark.parametrize(("experts", "m"), [(70001, 3), (0, 1100003)], ids=["experts", "rows"])
def test_many_tiles(experts: int, m: int, rng: np.random.Generator) -> None:
    """More than 65535 of them: of experts, and of rows."""
    batch = (experts,) if experts else ()
    weights = Weights.random(rng, (*batch, 8, 16), WHOLE, "integer", DTYPE, exact=True)
    x = rounded(rng.integers(-4, 5, (*batch, m, 8)), DTYPE)
    expected = rounded(np.matmul(x.astype(np.float64), weights.dense()), DTYPE)
    infos = {info.family: info for info in MIXED}.values() if experts else FIRST
    run = jax.jit(lambda x, matrix: [jaxgemm.matmul(x, matrix, kernel=info.name) for info in infos])
    for info, out in zip(infos, run(x, weights.matrix()), strict=True):
        assert_equal(np.asarray(out), expected, info.name)


# --- values -----------------------------------------------------------------------------------------------------------


def test_nan_stays_in_its_row_or_column(rng: np.random.Generator) -> None:
    """A NaN of a token reaches that token alone; of a scale, its column alone. Beyond K nothing is read."""
    m, n, k = 7, 48, 200
    x, weights = MixedCase(m, n, k, 64, "integer").draw(rng, DTYPE)
    x[m // 2, 5] = np.nan
    weights.scales[-1, n // 2] = np.nan
    run = jax.jit(lambda x, matrix: [jaxgemm.matmul(x, matrix, kernel=name) for name in MIXED_IDS])
    expected = np.zeros((m, n), bool)
    expected[m // 2], expected[:, n // 2] = True, True
    for name, out in zip(MIXED_IDS, run(x, weights.matrix()), strict=True):
        np.testing.assert_array_equal(np.isnan(np.asarray(out).astype(np.float32)), expected, name)


def test_zero_points_beyond_the_most_count_as_it(rng: np.random.Generator) -> None:
    x, weights = MixedCase(5, 256, 200, 64, "integer").draw(rng, DTYPE, exact=True)
    assert weights.zeros is not None
    weights.zeros[...] = np.arange(256)
    expected = rounded(x.astype(np.float64) @ weights.dense(), "float32")
    run = jax.jit(
        lambda x, matrix: [
            jaxgemm.matmul(x, matrix, preferred_element_type=np.float32, kernel=name) for name in MIXED_IDS
        ]
    )
    for name, out in zip(MIXED_IDS, run(x, weights.matrix()), strict=True):
        assert_equal(np.asarray(out), expected, name)


@pytest.mark.parametrize("out_dtype", [DTYPE, "float32"])
@pytest.mark.parametrize("info", WRITING, ids=[info.name for info in WRITING])
def test_epilogue(info: Any, out_dtype: str, rng: np.random.Generator, record_error: RecordError) -> None:
    """All in float32, rounded once: the error is that of the scaled accumulator times the slope of the function."""
    tile_m, tile_n, tile_k = info.cta_tile
    cases = [
        MixedCase(tile_m + 3, tile_n + column_unit(info, "integer"), tile_k + 8, 64, "integer", out=out_dtype),
        MixedCase(5, 2 * tile_n, 9 * tile_k, 128, out=out_dtype),  # whose K is split, where it can be
    ]
    assert (_core.k_split(info.name, cases[1].problem(DTYPE))[1] > 1) == info.split_k
    operands = [case.draw(rng, DTYPE) for case in cases]
    biases = [{dtype: normals(rng, (case.n,), dtype) for dtype in ("float32", "float16", "bfloat16")} for case in cases]
    # A wider bias could not be added to the result without loss, says jaxgemm.matmul.
    kinds = itertools.cycle([dtype for dtype in biases[0] if out_dtype in ("float32", dtype)])
    wanted = [(epilogue, next(kinds) if epilogue.has_bias else None) for epilogue in EPILOGUES]

    def run(operands: Any, biases: Any) -> list[list[jax.Array]]:
        return [
            [
                jaxgemm.matmul(
                    x, matrix, alpha=epilogue.alpha, bias=None if dtype is None else bias[dtype],
                    activation=None if epilogue.activation == "none" else epilogue.activation,
                    preferred_element_type=out_dtype, kernel=info.name,
                )
                for epilogue, dtype in wanted
            ]
            for (x, matrix), bias in zip(operands, biases, strict=True)
        ]  # fmt: skip

    arrays = [(x, weights.matrix()) for x, weights in operands]
    worst = 0.0
    for case, (x, weights), bias, outs in zip(
        cases, operands, biases, jax.device_get(jax.jit(run)(arrays, biases)), strict=True
    ):
        rounding = rounding_of(info, DTYPE, weights)
        for (epilogue, dtype), out in zip(wanted, outs, strict=True):
            add = None if dtype is None else bias[dtype]
            ratio = mixed_error_ratio(np.asarray(out), x, weights, rounding, epilogue, add)
            assert ratio <= 1, f"{case} {epilogue} {dtype}: error {ratio:.3g} times its bound"
            worst = max(worst, ratio)
    record_error(info.name, worst)


# --- transforms -------------------------------------------------------------------------------------------------------


@_over_last
def test_vmap_and_experts(info: Any, rng: np.random.Generator) -> None:
    """All in one program, exact."""
    m, n, k = 5, 48, 200
    x, weights = MixedCase(m, n, k, 64, "integer", experts=True).draw(rng, DTYPE, exact=True)
    first, matrix = weights.layer(0).matrix(), weights.matrix()

    def gemm(x: jax.Array, matrix: Any) -> jax.Array:
        return jaxgemm.matmul(x, matrix, preferred_element_type=np.float32, kernel=info.name)

    @jax.jit
    def run(x: jax.Array, matrix: Any, first: Any) -> dict[str, jax.Array]:
        return {
            "experts": gemm(x, matrix),
            "shared x": gemm(x[0], matrix),
            "shared x, broadcast": gemm(x[:1], matrix),
            "shared weights": gemm(x, first),
            "vmap x": jax.vmap(gemm, (0, None), 1)(x, first),
            "vmap weights": jax.vmap(gemm, (None, 0))(x[0], matrix),
            "vmap both": jax.vmap(gemm)(x, matrix),
            "vmap twice": jax.vmap(lambda a: jax.vmap(lambda w: gemm(a, w))(matrix))(x),
            "one token": gemm(x[0, 0], first),
            "cond": jax.lax.cond(x[0, 0, 0] > -100, gemm, lambda a, w: 0 * gemm(a, w), x[0], first),
        }

    out = jax.device_get(run(x, matrix, first))
    a, w = x.astype(np.float64), weights.dense()
    expected = {
        "experts": a @ w,
        "shared x": a[0] @ w,
        "shared x, broadcast": a[0] @ w,
        "shared weights": a @ w[0],
        "vmap x": np.swapaxes(a @ w[0], 0, 1),
        "vmap weights": a[0] @ w,
        "vmap both": a @ w,
        "vmap twice": a[:, None] @ w[None],
        "one token": a[0, 0] @ w[0],
        "cond": a[0] @ w[0],
    }
    assert out.keys() == expected.keys()
    for name, value in expected.items():
        assert_equal(out[name], rounded(value, "float32"), f"{info.name} {name}")


@_over_last
def test_derivatives(info: Any, rng: np.random.Generator) -> None:
    """By x and by scales, against the formulas in float64."""
    m, n, k = 37, 48, 200
    x, weights = MixedCase(m, n, k, 64, "integer", out=DTYPE).draw(rng, DTYPE)
    tangent, cotangent = normals(rng, (m, k), DTYPE), normals(rng, (m, n), DTYPE)
    matrix = weights.matrix()

    def gemm(x: jax.Array, scales: jax.Array, matrix: Any) -> jax.Array:
        leaves = [matrix.packed, scales, matrix.zeros]
        return jaxgemm.matmul(x, jax.tree.unflatten(jax.tree.structure(matrix), leaves), kernel=info.name)

    @jax.jit
    def run(x: jax.Array, matrix: Any, tangent: jax.Array, cotangent: jax.Array) -> dict[str, Any]:
        product = functools.partial(gemm, matrix=matrix)
        primal, pushed = jax.jvp(lambda a: product(a, matrix.scales), (x,), (tangent,))
        _, pull = jax.vjp(product, x, matrix.scales)
        loss = jax.grad(lambda a, s: (product(a, s) * cotangent).astype(np.float32).sum(), (0, 1))
        return {"primal": primal, "jvp": pushed, "vjp": pull(cotangent), "grad": loss(x, matrix.scales)}

    out = jax.device_get(run(x, matrix, tangent, cotangent))
    rounding = rounding_of(info, DTYPE, weights)
    for name, operand in (("primal", x), ("jvp", tangent)):
        assert mixed_error_ratio(out[name], operand, weights, rounding) <= 1, name

    g, w, offsets = cotangent.astype(np.float64), weights.dense(), weights.offsets()
    by_xla = rounding_of(None, DTYPE, weights)
    dtypes = (DTYPE, DTYPE, DTYPE)
    # The gradient by the matrix is rounded to the dtype of x, then multiplied by what the scale is multiplied by.
    starts = np.arange(0, k, weights.group_size)
    a = x.astype(np.float64)
    by_scales = np.add.reduceat(offsets * (a.T @ g), starts)
    by_scales_magnitude = np.add.reduceat(np.abs(offsets) * (np.abs(a).T @ np.abs(g)), starts)
    for name in ("vjp", "grad"):
        got_x, got_scales = out[name]
        ratio = error_ratio(got_x, g @ w.T, np.abs(g) @ np.abs(w).T, n, dtypes, weight_rounding=by_xla)
        assert ratio <= 1, f"{name} by x: {ratio}"
        terms = m + weights.group_size
        ratio = error_ratio(
            got_scales, by_scales, by_scales_magnitude, terms, dtypes, weight_rounding=unit_roundoff(DTYPE)
        )
        assert ratio <= 1, f"{name} by scales: {ratio}"


@_over_last
def test_scan_over_layers_is_the_loop(info: Any, rng: np.random.Generator) -> None:
    size, layers = 208, 2  # no multiple of 64: layers begin anywhere
    weights = Weights.random(rng, (layers, size, size), 128, "integer", DTYPE)
    x = normals(rng, (5, size), DTYPE)

    @jax.jit
    def run(x: jax.Array, matrix: Any, each: Any) -> tuple[jax.Array, jax.Array]:
        def step(y: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            return jaxgemm.matmul(y, layer, kernel=info.name), None

        scanned, _ = jax.lax.scan(step, x, matrix)
        looped = x
        for layer in each:
            looped, _ = step(looped, layer)
        return scanned, looped

    scanned, looped = jax.device_get(run(x, weights.matrix(), [weights.layer(i).matrix() for i in range(layers)]))
    assert np.isfinite(looped.astype(np.float32)).all()
    assert scanned.tobytes() == looped.tobytes()


@_over_kernels
def test_same_bits_run_after_run(info: Any, rng: np.random.Generator) -> None:
    """K is split, where it can be."""
    case = MixedCase(5, 3 * info.cta_tile[1], 24 * info.cta_tile[2] + 8, 64, out=DTYPE)
    assert (_core.k_split(info.name, case.problem(DTYPE))[1] > 1) == info.split_k
    x, weights = case.draw(rng, DTYPE)
    operands = jax.device_put((x, weights.matrix()))
    gemm = jax.jit(lambda x, matrix: jaxgemm.matmul(x, matrix, kernel=info.name))
    noise = jnp.ones((2048, 2048), jnp.float32)
    poison_free_memory()
    outs = []
    for i in range(6):
        noise = noise * 0.5 + i  # other work on the same stream, and other memory for the next result
        outs.append(gemm(*operands))
    first = np.asarray(outs[0])
    assert np.isfinite(first.astype(np.float32)).all()
    assert all(np.asarray(out).tobytes() == first.tobytes() for out in outs)


# --- choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FAMILIES, *MIXED_IDS])
def test_a_named_kernel_runs(name: str) -> None:
    """Lowered, not compiled."""
    case = MixedCase(24, 256, 512, out=DTYPE)
    x, weights = case.draw(np.random.default_rng(0), DTYPE)
    text = jax.jit(lambda x, matrix: jaxgemm.matmul(x, matrix, kernel=name)).lower(x, weights.matrix()).as_text()
    runs = name if name in MIXED_IDS else _core.select(case.problem(DTYPE), name)
    assert text.count(f"@{MIXED_TARGET}(") == 1
    assert f'kernel = "{runs}"' in text


@pytest.mark.parametrize("m", [1, 33, 300])
def test_the_choice_is_that_of_select(m: int, rng: np.random.Generator) -> None:
    """Without a name; eager and jitted calls give the same bits."""
    case = MixedCase(m, 144, 1000, 64, "integer", out=DTYPE)
    x, weights = case.draw(rng, DTYPE)
    matrix = jax.device_put(weights.matrix())
    chosen = _core.select(case.problem(DTYPE))
    assert chosen in MIXED_IDS
    jitted = jax.jit(jaxgemm.matmul)
    assert f'kernel = "{chosen}"' in jitted.lower(x, matrix).as_text()
    out = np.asarray(jitted(x, matrix))
    assert mixed_error_ratio(out, x, weights, rounding_of(MIXED_INFO[chosen], DTYPE, weights)) <= 1
    assert np.asarray(jaxgemm.matmul(x, matrix)).tobytes() == out.tobytes()
    assert np.asarray(jnp.asarray(x) @ matrix).tobytes() == out.tobytes()


def test_joined_columns(rng: np.random.Generator) -> None:
    """One product for three: of small integers, so that all sums are exact, whatever kernels they are of."""
    k, widths = 1024, (2048, 256, 256)
    ones = [jnp.ones((k // 128, n), jnp.bfloat16) for n in widths]
    matrices = [
        formats.from_codes(rng.integers(0, 16, (k, n), np.uint8), scales, bits=4, group_size=128)
        for n, scales in zip(widths, ones, strict=True)
    ]
    joined = jaxgemm.join_columns(matrices, 2)
    for m in (1, 16, 64):
        x = jnp.array(rng.integers(-4, 5, (m, k)), jnp.bfloat16)
        found = jax.jit(lambda x, w: jaxgemm.split_columns(jaxgemm.matmul(x, w), widths, 2))(x, joined)
        for out, w in zip(found, matrices, strict=True):
            exact = np.asarray(x, np.float64) @ np.asarray(w.dequantize(jnp.float32), np.float64)
            assert_equal(np.asarray(out), rounded(exact, "bfloat16"), f"{m} tokens, N={w.n}")


def test_symbolic_tokens(rng: np.random.Generator) -> None:
    """One exported program for any number of them, with a kernel."""
    (tokens,) = jax.export.symbolic_shape("tokens")
    weights = MixedCase(1, 144, 192, 64, "integer").draw(rng, DTYPE, exact=True)[1]
    matrix = jax.device_put(weights.matrix())
    checks = jaxgemm.export_checks()
    exported = jax.export.export(jax.jit(jaxgemm.matmul), platforms=["cuda"], disabled_checks=checks)(
        jax.ShapeDtypeStruct((tokens, 192), DTYPE), matrix
    )
    assert f"@{MIXED_TARGET}" in exported.mlir_module()
    for m in (1, 130):
        x = rounded(rng.integers(-4, 5, (m, 192)), DTYPE)
        out = np.asarray(exported.call(x, matrix))
        assert_equal(out, rounded(x.astype(np.float64) @ weights.dense(), DTYPE), str(m))


def test_what_no_kernel_takes_is_dequantised(rng: np.random.Generator) -> None:
    """Groups of 48 rows and floating-point zero points; the names of kernels are refused."""
    for change in ({"group": 48}, {"zeros": "float"}):
        case = MixedCase(5, 48, 200, out=DTYPE, **change)
        x, weights = case.draw(rng, DTYPE)
        matrix = weights.matrix()
        assert MIXED_TARGET not in jax.jit(jaxgemm.matmul).lower(x, matrix).as_text()
        out = np.asarray(jax.jit(jaxgemm.matmul)(x, matrix))
        assert mixed_error_ratio(out, x, weights, rounding_of(None, DTYPE, weights)) <= 1
        with pytest.raises(ValueError, match="no kernel can"):
            jaxgemm.matmul(x, matrix, kernel=FAMILIES[0])


# --- at random --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(RANDOM_PROGRAMS))
def test_random_problems(number: int, rng: np.random.Generator, record_error: RecordError) -> None:
    """The kernel is left to the chooser, which leaves some to XLA."""
    dtype, cases = random_cases(number)
    program = MixedProgram(cases, dtype, [None] * len(cases))
    operands = program.draw(rng)
    for kernel, ratio in program.ratios(operands, program(operands)).items():
        if kernel:
            record_error(kernel, ratio)
