"""cuda/tile/fragment.cuh: which lane holds which element, against published tables and the emulated mma."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes  # noqa: F401  (NumPy then knows float8_e4m3fn by name)
import numpy as np
import pytest

from tests.emulator.library import Emulator

LANES = np.arange(32)
ELEMS = (1, 2, 4)
"""Elements to a register: tf32, 16 bits, 8 bits."""

# The accumulator of 16 x 16 elements that two m16n8 multiplications make, as a GPU printed it (in a public tutorial):
# a row per lane, eight (row, column) each, the first four of columns 0 to 7, the others of columns 8 to 15.
PRINTED = """
( 0, 0) ( 0, 1) ( 8, 0) ( 8, 1) ( 0, 8) ( 0, 9) ( 8, 8) ( 8, 9)
( 0, 2) ( 0, 3) ( 8, 2) ( 8, 3) ( 0,10) ( 0,11) ( 8,10) ( 8,11)
( 0, 4) ( 0, 5) ( 8, 4) ( 8, 5) ( 0,12) ( 0,13) ( 8,12) ( 8,13)
( 0, 6) ( 0, 7) ( 8, 6) ( 8, 7) ( 0,14) ( 0,15) ( 8,14) ( 8,15)
( 1, 0) ( 1, 1) ( 9, 0) ( 9, 1) ( 1, 8) ( 1, 9) ( 9, 8) ( 9, 9)
( 1, 2) ( 1, 3) ( 9, 2) ( 9, 3) ( 1,10) ( 1,11) ( 9,10) ( 9,11)
( 1, 4) ( 1, 5) ( 9, 4) ( 9, 5) ( 1,12) ( 1,13) ( 9,12) ( 9,13)
( 1, 6) ( 1, 7) ( 9, 6) ( 9, 7) ( 1,14) ( 1,15) ( 9,14) ( 9,15)
( 2, 0) ( 2, 1) (10, 0) (10, 1) ( 2, 8) ( 2, 9) (10, 8) (10, 9)
( 2, 2) ( 2, 3) (10, 2) (10, 3) ( 2,10) ( 2,11) (10,10) (10,11)
( 2, 4) ( 2, 5) (10, 4) (10, 5) ( 2,12) ( 2,13) (10,12) (10,13)
( 2, 6) ( 2, 7) (10, 6) (10, 7) ( 2,14) ( 2,15) (10,14) (10,15)
( 3, 0) ( 3, 1) (11, 0) (11, 1) ( 3, 8) ( 3, 9) (11, 8) (11, 9)
( 3, 2) ( 3, 3) (11, 2) (11, 3) ( 3,10) ( 3,11) (11,10) (11,11)
( 3, 4) ( 3, 5) (11, 4) (11, 5) ( 3,12) ( 3,13) (11,12) (11,13)
( 3, 6) ( 3, 7) (11, 6) (11, 7) ( 3,14) ( 3,15) (11,14) (11,15)
( 4, 0) ( 4, 1) (12, 0) (12, 1) ( 4, 8) ( 4, 9) (12, 8) (12, 9)
( 4, 2) ( 4, 3) (12, 2) (12, 3) ( 4,10) ( 4,11) (12,10) (12,11)
( 4, 4) ( 4, 5) (12, 4) (12, 5) ( 4,12) ( 4,13) (12,12) (12,13)
( 4, 6) ( 4, 7) (12, 6) (12, 7) ( 4,14) ( 4,15) (12,14) (12,15)
( 5, 0) ( 5, 1) (13, 0) (13, 1) ( 5, 8) ( 5, 9) (13, 8) (13, 9)
( 5, 2) ( 5, 3) (13, 2) (13, 3) ( 5,10) ( 5,11) (13,10) (13,11)
( 5, 4) ( 5, 5) (13, 4) (13, 5) ( 5,12) ( 5,13) (13,12) (13,13)
( 5, 6) ( 5, 7) (13, 6) (13, 7) ( 5,14) ( 5,15) (13,14) (13,15)
( 6, 0) ( 6, 1) (14, 0) (14, 1) ( 6, 8) ( 6, 9) (14, 8) (14, 9)
( 6, 2) ( 6, 3) (14, 2) (14, 3) ( 6,10) ( 6,11) (14,10) (14,11)
( 6, 4) ( 6, 5) (14, 4) (14, 5) ( 6,12) ( 6,13) (14,12) (14,13)
( 6, 6) ( 6, 7) (14, 6) (14, 7) ( 6,14) ( 6,15) (14,14) (14,15)
( 7, 0) ( 7, 1) (15, 0) (15, 1) ( 7, 8) ( 7, 9) (15, 8) (15, 9)
( 7, 2) ( 7, 3) (15, 2) (15, 3) ( 7,10) ( 7,11) (15,10) (15,11)
( 7, 4) ( 7, 5) (15, 4) (15, 5) ( 7,12) ( 7,13) (15,12) (15,13)
( 7, 6) ( 7, 7) (15, 6) (15, 7) ( 7,14) ( 7,15) (15,14) (15,15)
"""


def test_accumulators_are_where_a_gpu_printed_them(emulated: Emulator) -> None:
    numbers = PRINTED.replace("(", " ").replace(")", " ").replace(",", " ").split()
    printed = np.array(numbers, int).reshape(32, 8, 2)
    left = emulated.fragments(2)["d"]
    np.testing.assert_array_equal(np.concatenate([left, left + np.array([0, 8])], axis=1), printed)


# PTX ISA, "Matrix Fragments for mma.m16n8k8" (tf32), "mma.m16n8k16 with floating point type", "mma.m16n8k32" (8 bits).
# By operand and elements to a register: row and column of element i of a lane of group g that is the t-th in it.
PUBLISHED: dict[tuple[str, int], Callable[[int, int, int], tuple[int, int]]] = {
    ("a", 1): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("b", 1): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("a", 2): lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
    ("b", 2): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    ("a", 4): lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
    ("b", 4): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
} | {("d", elems): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)) for elems in ELEMS}


@pytest.mark.parametrize(("operand", "elems"), PUBLISHED)
def test_fragments_are_the_published_ones(operand: str, elems: int, emulated: Emulator) -> None:
    coords = emulated.fragments(elems)[operand]
    formula = PUBLISHED[operand, elems]
    expected = [[formula(lane >> 2, lane % 4, i) for i in range(coords.shape[1])] for lane in LANES.tolist()]
    np.testing.assert_array_equal(coords, expected)


@pytest.mark.parametrize("elems", ELEMS)
def test_every_element_has_one_place(elems: int, emulated: Emulator) -> None:
    depth = 8 * elems
    fragments = emulated.fragments(elems)
    for operand, shape in {"a": (16, depth), "b": (depth, 8), "d": (16, 8)}.items():
        holders = np.zeros(shape, int)
        np.add.at(holders, tuple(fragments[operand].reshape(-1, 2).T), 1)
        assert (holders == 1).all(), operand


def test_other_registers_there_are_none(emulated: Emulator) -> None:
    with pytest.raises(ValueError, match="registers hold 1, 2 or 4 elements"):
        emulated.fragments(3)


# --- what the emulated mma does with its registers (tests/emulator/probes/mma_operands.cuh) ---------------------------


def _small(words: np.ndarray, byte: int) -> np.ndarray:
    return (words >> 8 * byte & 15).astype(np.int64) - 8


def _bytes(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words).view(np.int8).astype(np.int64)


def _wrapping_accumulator(words: np.ndarray) -> np.ndarray:
    return (np.where(words & 1, 0x7FFFFFFF, 0x80000000).astype(np.uint32) ^ words >> 17).view(np.int32)


def _matrix(coords: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The matrix whose elements the lanes hold where ``coords`` says."""
    assert coords.shape == (*elements.shape, 2)
    matrix = np.zeros(coords.max(axis=(0, 1)) + 1, elements.dtype)
    matrix[tuple(coords.reshape(-1, 2).T)] = elements.ravel()
    return matrix


_ELEMS_OF_PROBE = {
    "mma.m16n8k8.tf32": 1, "mma.m16n8k8.tf32.low_bits": 1,
    "mma.m16n8k16.f16": 2, "mma.m16n8k16.bf16": 2, "mma.m16n8k16.f16.f16": 2,
    "mma.m16n8k32.s8": 4, "mma.m16n8k32.e4m3.e4m3": 4, "mma.m16n8k32.e4m3.e5m2": 4, "mma.m16n8k32.e5m2.e4m3": 4,
    "mma.m16n8k32.e5m2.e5m2": 4,
}  # fmt: skip


@pytest.mark.parametrize(("probe", "elems"), _ELEMS_OF_PROBE.items())
def test_mma_has_these_fragments(probe: str, elems: int, emulated: Emulator, rng: np.random.Generator) -> None:
    words = rng.integers(0, 2**32, emulated.probes[probe][0], np.uint32)
    out, ran = emulated.run_probe(probe, words)
    assert ran.clean
    a, b, d = np.split(words.reshape(32, 10), [4, 6], axis=1)
    if probe.endswith("s8"):
        a, b, d, out = _bytes(a), _bytes(b), _wrapping_accumulator(d), out.view(np.int32)
    else:
        a, b = (np.stack([_small(x, i) for i in range(elems)], axis=-1).reshape(32, -1) for x in (a, b))
        d, out = 100 * _small(d, 0) + _small(d, 1), out.view(np.float32)
    maps = emulated.fragments(elems)
    expected = _matrix(maps["a"], a) @ _matrix(maps["b"], b) + _matrix(maps["d"], d)
    np.testing.assert_array_equal(_matrix(maps["d"], out.reshape(32, 4)), expected.astype(out.dtype))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_mma_reads_every_number_of_8_bits(dtype: str, emulated: Emulator, rng: np.random.Generator) -> None:
    """The product of the unit matrix and b is b."""
    probe = f"mma.m16n8k32.{dtype[7:11]}.unit"
    every = np.arange(256, dtype=np.uint8)
    finite = every[np.isfinite(every.view(dtype).astype(np.float32))]
    numbers = rng.permutation(np.resize(finite, 256))
    words = np.zeros(emulated.probes[probe][0], np.uint32)
    words[:64] = numbers.view(np.uint32)
    out, ran = emulated.run_probe(probe, words)
    assert ran.clean
    maps = emulated.fragments(4)
    halves = [_matrix(maps["d"], half) for half in out.view(np.float32).reshape(2, 32, 4)]
    expected = _matrix(maps["b"], numbers.reshape(32, 8)).view(dtype).astype(np.float32)
    np.testing.assert_array_equal(np.concatenate(halves), expected)
