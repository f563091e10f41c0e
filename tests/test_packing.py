"""jaxgemm/_packing.py: the order of codes in memory, against PTX's fragments."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxgemm._packing import BITS, TILE_K, TILE_N, pack, packed_shape, unpack


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 17), (200, 40), (3, 130, 50), (2, 2, 64, 32), (0, 5), (5, 0)])
def test_round_trip(bits: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    codes = rng.integers(0, 2**bits, shape, np.uint8)
    packed = pack(codes, bits, 0)
    assert packed.dtype == np.uint8
    assert packed.shape == (*shape[:-2], *packed_shape(*shape[-2:], bits))
    np.testing.assert_array_equal(unpack(packed, *shape[-2:], bits), codes)


@pytest.mark.parametrize("bits", BITS)
def test_padding_is_the_fill(bits: int) -> None:
    k, n = 65, 17
    whole = unpack(pack(np.zeros((k, n), np.uint8), bits, 5), 2 * TILE_K, 2 * TILE_N, bits)
    assert not np.asarray(whole)[:k, :n].any()
    assert (np.asarray(whole)[k:] == 5).all()
    assert (np.asarray(whole)[:, n:] == 5).all()


def _fragment_element(lane: int, register: int, half: int) -> tuple[int, int]:
    """Row and column of the A operand (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type")."""
    group, in_group, i = lane // 4, lane % 4, 2 * register + half
    row = group if i < 2 or 4 <= i < 6 else group + 8
    col = in_group * 2 + (i & 1) + (8 if i >= 4 else 0)
    return row, col


def test_a_word_of_four_bits_is_a_fragment(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 16, (TILE_K, TILE_N), np.uint8)
    words = np.asarray(pack(codes, 4, 0)).view(np.uint32).reshape(32, 4)
    for lane in range(32):
        for step in range(4):
            for register in range(4):
                pair = int(words[lane, step]) >> 4 * register & 0x000F000F
                for half in (0, 1):
                    n, k = _fragment_element(lane, register, half)
                    assert pair >> 16 * half & 0xFFFF == codes[16 * step + k, n]


def test_two_words_of_eight_bits_are_a_fragment(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 256, (TILE_K, TILE_N), np.uint8)
    words = np.asarray(pack(codes, 8, 0)).view(np.uint32).reshape(2, 32, 4)
    for lane in range(32):
        for step in range(4):
            for register in range(4):
                word = int(words[step // 2, lane, step % 2 * 2 + register // 2])
                for half in (0, 1):
                    n, k = _fragment_element(lane, register, half)
                    assert word >> 8 * (register % 2 + 2 * half) & 0xFF == codes[16 * step + k, n]


def test_under_jit_and_vmap(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 16, (3, 70, 20), np.uint8)
    one_by_one = np.stack([pack(layer, 4, 8) for layer in codes])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: pack(x, 4, 8)))(codes), one_by_one)
