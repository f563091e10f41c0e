"""Quantised weights in memory: in the order in which the warps of a mixed kernel multiply them.

The matrix (K, N) is cut into tiles of 64 rows by 16 columns, padded where it ends; tiles of the same columns follow
each other along K, so that a CTA that walks along K reads memory straight on. Within a tile, each of the 32 lanes has
16 bytes (32 of 8-bit codes) of its own: the elements that PTX gives it of four 16 x 16 fragments of the A operand,
whose rows are columns of the matrix (PTX ISA, "Matrix Fragments for mma.m16n8k16"; those of a warp of wgmma are the
same). No other instruction than the load is needed to bring them there.

In a 32-bit word of eight 4-bit codes, code i is the element of register i % 4 and half i / 4, counted from the lowest
bits: a mask and one shift then leave pairs of codes in the two halves of a word, where bfloat16 and float16 numbers are
made of them. Of 8-bit codes two words are what one is of 4-bit codes, byte i of word w being register 2 w + i % 2, half
i / 2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm._native import _core

LAYOUT_VERSION = 1
"""Of packed arrays that are kept in files: raised when the order below changes."""
TILE_K, TILE_N = _core.PACKED_TILE_K, _core.PACKED_TILE_N
NIBBLE = 4
BITS = (NIBBLE, 8)

_LANES, _STEP_K, _WORD_BYTES = 32, 16, 4


def tile_bytes(bits: int) -> int:
    """Bytes of one tile."""
    return TILE_K * TILE_N * bits // 8


def packed_shape(k: int, n: int, bits: int) -> tuple[int, int, int]:
    """Shape of the packed array of a (k, n) matrix: tiles along N, tiles along K, bytes of a tile."""
    return -(-n // TILE_N), -(-k // TILE_K), tile_bytes(bits)


@functools.cache
def _order(bits: int) -> np.ndarray:
    """For each code of a tile, in the order of memory, its place k * TILE_N + n."""
    codes = TILE_K * TILE_N
    if bits == 4:
        lane, step, i = np.unravel_index(np.arange(codes), (_LANES, TILE_K // _STEP_K, 8))
        register, half = i % 4, i // 4
    else:
        chunk, lane, in_chunk, word, i = np.unravel_index(np.arange(codes), (2, _LANES, 2, 2, 4))
        step, register, half = 2 * chunk + in_chunk, 2 * word + i % 2, i // 2
    n = lane // 4 + 8 * (register % 2)
    k = _STEP_K * step + 2 * (lane % 4) + half + 8 * (register // 2)
    return k * TILE_N + n


def pack(codes: jax.Array, bits: int, fill: int) -> jax.Array:
    """Codes (..., K, N), each below 2**bits, as uint8 of shape (..., *packed_shape(K, N, bits)).

    Args:
      codes: unsigned integers.
      bits: 4 or 8.
      fill: the code of what pads the last tiles; kernels multiply it by zeros, or drop what comes of it.
    """
    *batch, k, n = codes.shape
    tiles_n, tiles_k, _ = packed_shape(k, n, bits)
    pads = [(0, 0)] * len(batch) + [(0, tiles_k * TILE_K - k), (0, tiles_n * TILE_N - n)]
    padded = jnp.pad(codes.astype(jnp.uint8), pads, constant_values=fill)
    tiles = jnp.moveaxis(padded.reshape(*batch, tiles_k, TILE_K, tiles_n, TILE_N), -2, -4)
    ordered = tiles.reshape(*batch, tiles_n, tiles_k, TILE_K * TILE_N)[..., _order(bits)]
    if bits == 8:
        return ordered
    return ordered[..., ::2] | ordered[..., 1::2] << 4


def unpack(packed: jax.Array, k: int, n: int, bits: int) -> jax.Array:
    """The codes (..., k, n), as uint8, of what :func:`pack` made."""
    *batch, tiles_n, tiles_k, _ = packed.shape
    if bits == 4:
        packed = jnp.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], TILE_K * TILE_N)
    tiles = packed[..., np.argsort(_order(bits))].reshape(*batch, tiles_n, tiles_k, TILE_K, TILE_N)
    return jnp.moveaxis(tiles, -4, -2).reshape(*batch, tiles_k * TILE_K, tiles_n * TILE_N)[..., :k, :n]
