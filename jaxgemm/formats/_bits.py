"""Codes in 32-bit words, as checkpoints hold them: the lowest bits of a word first."""

from typing import Any

import numpy as np

WORD_BITS = 32


def words(x: Any, what: str) -> np.ndarray:
    """A checkpoint's tensor of words, whose sign means nothing."""
    array = np.asarray(x)
    if array.dtype not in (np.int32, np.uint32) or array.ndim != 2:
        raise TypeError(f"{what} is a matrix of int32, got {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array).view(np.uint32)


def split(packed: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """uint8 codes, ``32 // bits`` for each word along ``axis``."""
    each = WORD_BITS // bits
    codes = packed[..., None] >> (np.arange(each, dtype=np.uint32) * bits) & (2**bits - 1)
    codes = np.moveaxis(codes, -1, axis + 1).astype(np.uint8)
    shape = list(packed.shape)
    shape[axis] *= each
    return codes.reshape(shape)


def join(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """The int32 words of uint8 codes, along ``axis``; what the last word lacks is zero."""
    each = WORD_BITS // bits
    pads = [(0, 0)] * codes.ndim
    pads[axis] = (0, -codes.shape[axis] % each)
    padded = np.pad(codes, pads).astype(np.uint32)
    shape = list(padded.shape)
    shape[axis : axis + 1] = [shape[axis] // each, each]
    shifts = (np.arange(each, dtype=np.uint32) * bits).reshape([-1 if d == axis + 1 else 1 for d in range(len(shape))])
    return np.bitwise_or.reduce(padded.reshape(shape) << shifts, axis=axis + 1).view(np.int32)


def check_shape(what: str, x: Any, wanted: tuple[int, ...], why: str) -> None:
    """Raises ValueError unless ``x`` has the shape that the others ask for."""
    if tuple(np.shape(x)) != wanted:
        raise ValueError(
            f"{what} has shape {tuple(np.shape(x))}, not {wanted}, which {why}: the tensors do not belong together"
        )
