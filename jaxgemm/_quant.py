"""The pytree of quantised weights, and how one is made of codes."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxgemm import _compat, _packing
from jaxgemm._native import _core

SCALE_DTYPES = ("float16", "bfloat16", "float32")
_SIGNED = {"int4": 4, "int8": 8}


def middle(bits: int) -> int:
    """The zero point of symmetric codes."""
    return 2 ** (bits - 1)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class QuantizedMatrix:
    """A matrix (..., K, N) of codes of 4 or 8 bits, with a scale for each group of rows of each column.

    Element (k, n) is ``(code - zero) * scale``, with scale and zero of group ``k // group_size`` and column n. It is a
    pytree: it may be an argument or result of ``jax.jit``, be scanned over, be vmapped along leading dimensions, be
    donated, be kept in checkpoints, and be sharded along K or N (:meth:`specs`).

    Attributes:
      packed: uint8 (..., N tiles, K tiles, bytes): the codes, in the kernels' order (docs/int4.md).
      scales: (..., groups, N), of float16, bfloat16 or float32.
      zeros: None if all are in the middle of the codes (symmetric); else (..., groups, N), uint8 (those of 4-bit codes
        count as 127 if they are larger) or of the dtype of scales.
      permutation: None, or int32 (..., K): row i of the codes is row ``permutation[i]`` of the matrix, where rows of a
        group do not lie together ("act-order").
      k: rows of the matrix.
      n: columns of the matrix.
      bits: 4 or 8.
      group_size: rows of a group; the last one may be shorter.
      layout: the version of the order of ``packed``. It is also part of that leaf's name among the key paths of the
        pytree, "packed_v1", by which checkpoints name what they hold: one of another version is not restored.
    """

    packed: Any
    scales: Any
    zeros: Any
    permutation: Any
    k: int
    n: int
    bits: int
    group_size: int
    layout: int = _packing.LAYOUT_VERSION

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.packed.shape[:-3], self.k, self.n)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the scales, in which the matrix is meant."""
        return self.scales.dtype

    @property
    def symmetric(self) -> bool:
        return self.zeros is None

    @property
    def nbytes(self) -> int:
        """Of everything that a kernel reads, padding included."""
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self))

    def astype(self, dtype: Any) -> "QuantizedMatrix":
        """The same codes with scales, and zeros that are no integers, of another dtype.

        Raises:
          TypeError: a dtype other than float16, bfloat16 and float32.
        """
        dtype, zeros = scale_dtype_of(dtype), self.zeros
        if zeros is not None and jnp.issubdtype(zeros.dtype, jnp.floating):
            zeros = zeros.astype(dtype)
        return dataclasses.replace(self, scales=self.scales.astype(dtype), zeros=zeros)

    def specs(self, spec: PartitionSpec) -> "QuantizedMatrix":
        """How the arrays are sharded of a matrix that is sharded so.

        Args:
          spec: of the matrix (..., K, N): e.g. ``PartitionSpec(None, "model")`` for its columns.

        Returns:
          The same structure with a PartitionSpec for each array: for ``jax.tree.map`` to shardings, which
          ``jax.device_put`` takes, and for ``jax.shard_map``. Products split K and N where every part is whole tiles
          of 64 rows and 16 columns, and whole groups; other dimensions are gathered first.

        Raises:
          ValueError: a spec of more dimensions than the matrix has.
        """
        if len(spec) > self.ndim:
            raise ValueError(f"{spec} has more dimensions than {self!r}")
        *batch, rows, columns = (*spec, *[None] * (self.ndim - len(spec)))
        groups = PartitionSpec(*batch, rows if self.scales.shape[-2] > 1 else None, columns)
        return dataclasses.replace(
            self,
            packed=PartitionSpec(*batch, columns, rows, None),
            scales=groups,
            zeros=None if self.zeros is None else groups,
            permutation=None if self.permutation is None else PartitionSpec(*batch, None),
        )

    def of_arrays(self) -> "QuantizedMatrix":
        """The same with the sizes of its arrays, which inside ``jax.shard_map`` are those of one device.

        Raises:
          TypeError: packed codes that are no longer uint8.
          ValueError: arrays that are neither a matrix of this structure nor an equal part of one; packed in the order
            of another version of jaxgemm.
        """
        if self.layout != _packing.LAYOUT_VERSION:
            raise ValueError(
                f"codes packed in layout {self.layout} cannot be read by this jaxgemm, which packs in layout "
                f"{_packing.LAYOUT_VERSION}: import or quantise the matrix again"
            )
        if self.packed.dtype != np.uint8:
            raise TypeError(
                f"{self!r} has packed codes of {self.packed.dtype} instead of uint8: convert scales alone, by .astype"
            )
        *batch, _, tiles_k, _ = self.packed.shape if len(self.packed.shape) > 2 else (0, 0, 0)
        n = self.scales.shape[-1] if len(self.scales.shape) > 1 else 0
        k = self.k if tiles_k == -(-self.k // _packing.TILE_K) else tiles_k * _packing.TILE_K
        found = self if (k, n) == (self.k, self.n) else self._part(k, n)
        groups = (*batch, -(-k // found.group_size), n)
        wanted = {"packed": (*batch, *_packing.packed_shape(k, n, self.bits)), "scales": groups, "zeros": groups}
        wanted["permutation"] = (*batch, k)
        have = {name: tuple(getattr(self, name).shape) for name in wanted if getattr(self, name) is not None}
        if (k and self.k % k) or (n and self.n % n) or any(wanted[name] != shape for name, shape in have.items()):
            arrays = ", ".join(f"{name} {shape}" for name, shape in have.items())
            raise ValueError(
                f"arrays of shapes {arrays} are no matrix of K={self.k}, N={self.n}, {self.bits} bits and groups of "
                f"{self.group_size}, nor an equal part of one in whole tiles of {_packing.TILE_K} x {_packing.TILE_N} "
                "and whole groups: see QuantizedMatrix.specs"
            )
        return found

    def _part(self, k: int, n: int) -> "QuantizedMatrix":
        """The same of so many rows and columns."""
        return dataclasses.replace(self, k=k, n=n, group_size=min(self.group_size, max(k, 1)))

    def dequantize(self, dtype: Any = None) -> jax.Array:
        """The matrix (..., K, N): computed in float32, then rounded to ``dtype``, by default that of the scales.

        Raises:
          TypeError, ValueError: as :meth:`of_arrays`.
        """
        matrix = self.of_arrays()
        if _compat.has_explicit_axes(jax.typeof(self.packed).sharding.mesh):
            from jaxgemm._mixed_partition import dequantize_explicit

            return dequantize_explicit(matrix, dtype or self.dtype)
        return matrix._dequantized(dtype or self.dtype)

    def _dequantized(self, dtype: Any) -> jax.Array:
        codes = _packing.unpack(self.packed, self.k, self.n, self.bits).astype(jnp.float32)
        zeros = jnp.float32(middle(self.bits)) if self.zeros is None else self._rows(self._zeros())
        matrix = ((codes - zeros) * self._rows(self.scales)).astype(dtype)
        if self.permutation is None:
            return matrix
        return jnp.take_along_axis(matrix, jnp.argsort(self.permutation, axis=-1)[..., None], axis=-2)

    def _zeros(self) -> jax.Array:
        """Zero points as kernels read them."""
        if self.bits == _packing.NIBBLE and jnp.issubdtype(self.zeros.dtype, jnp.integer):
            return jnp.minimum(self.zeros, _core.MOST_ZERO)
        return self.zeros

    def _rows(self, of_groups: jax.Array) -> jax.Array:
        """One row for each row of the codes."""
        return jnp.repeat(of_groups.astype(jnp.float32), self.group_size, axis=-2)[..., : self.k, :]

    def __rmatmul__(self, lhs: Any) -> jax.Array:
        from jaxgemm._matmul import matmul

        return matmul(lhs, self)

    def __repr__(self) -> str:
        def of(x: Any) -> str:
            return f"{x.dtype}{list(x.shape)}" if hasattr(x, "shape") and hasattr(x, "dtype") else repr(x)

        kind = "symmetric" if self.zeros is None else f"zeros {of(self.zeros)}"
        order = "" if self.permutation is None else f", permutation {of(self.permutation)}"
        return (
            f"QuantizedMatrix(K={self.k}, N={self.n}, {self.bits} bits, groups of {self.group_size}, {kind}, "
            f"scales {of(self.scales)}, packed {of(self.packed)}{order})"
        )


_ARRAYS = ("packed", "scales", "zeros", "permutation")
_STATIC = ("k", "n", "bits", "group_size", "layout")


def _flatten(matrix: QuantizedMatrix) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(getattr(matrix, name) for name in _ARRAYS), tuple(getattr(matrix, name) for name in _STATIC)


def _flatten_with_keys(matrix: QuantizedMatrix) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    leaves, static = _flatten(matrix)
    names = (f"packed_v{matrix.layout}", *_ARRAYS[1:])
    return tuple((jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)), static


jax.tree_util.register_pytree_with_keys(
    QuantizedMatrix, _flatten_with_keys, lambda static, leaves: QuantizedMatrix(*leaves, *static), _flatten
)


def scale_dtype_of(dtype: Any) -> np.dtype:
    """The dtype, if it is one of scales."""
    dtype = jnp.dtype(dtype)
    if dtype.name not in SCALE_DTYPES:
        raise TypeError(f"scales of dtype {dtype} are none of {', '.join(SCALE_DTYPES)}: name one of them")
    return dtype


def check_bits_and_group(bits: Any, group_size: Any) -> None:
    """Raises ValueError for what no kernel takes."""
    if bits not in _packing.BITS:
        raise ValueError(f"bits={bits!r} is none of {', '.join(map(str, _packing.BITS))}")
    if type(group_size) is not int or group_size < 1:
        raise ValueError(
            f"group_size={group_size!r} is no positive number of rows: 32, 64, 128, or -1 for whole columns"
        )


def from_codes(
    codes: Any, scales: Any, zeros: Any = None, *, bits: int = 4, group_size: int = 128, permutation: Any = None
) -> QuantizedMatrix:
    """A matrix of codes that exist already, e.g. of ``jnp.int4`` or ``jnp.uint4``.

    Args:
      codes: integers (..., K, N): unsigned and below ``2**bits``, or of the dtype int4 or int8 of as many bits, which
        mean the code less ``2**(bits - 1)``.
      scales: floating-point (..., groups, N).
      zeros: None for zero points in the middle of the codes, or (..., groups, N): integers of the codes' own kind, from
        0 to 255 or less ``2**(bits - 1)`` as they are; or floating-point, for unsigned codes.
      bits: 4 or 8.
      group_size: rows to a scale; -1: all.
      permutation: None, or (..., K): row i of codes is row ``permutation[i]`` of the matrix.

    Returns:
      A :class:`QuantizedMatrix` of shape (..., K, N).

    Raises:
      ValueError: shapes that do not fit together; codes that have more bits, as far as their values are known.
      TypeError: dtypes that are none of the above.
    """
    codes, scales = jnp.asarray(codes), jnp.asarray(scales)
    signed = jnp.issubdtype(codes.dtype, jnp.signedinteger)
    if codes.ndim < 2 or not (jnp.issubdtype(codes.dtype, jnp.unsignedinteger) or codes.dtype.name in _SIGNED):
        raise TypeError(
            f"codes are unsigned integers, {' or '.join(_SIGNED)} of two or more dimensions, not "
            f"{codes.dtype}{list(codes.shape)}"
        )
    *batch, k, n = codes.shape
    group_size = max(k, 1) if group_size == -1 else group_size
    check_bits_and_group(bits, group_size)
    if signed and _SIGNED[codes.dtype.name] != bits:
        raise TypeError(f"codes of dtype {codes.dtype} have not bits={bits}: convert them to int{bits}, if they fit")
    scale_dtype_of(scales.dtype)
    wanted = (*batch, -(-k // group_size), n)
    for what, x in (("scales", scales), ("zeros", zeros)):
        if x is not None and jnp.shape(x) != wanted:
            raise ValueError(
                f"{what} of shape {jnp.shape(x)} do not fit codes of shape {codes.shape} with group_size={group_size}: "
                f"they would have {wanted}"
            )
    if zeros is not None:
        zeros = jnp.asarray(zeros)
        integer = jnp.issubdtype(zeros.dtype, jnp.integer)
        if signed and not integer:
            raise TypeError(f"zeros of {zeros.dtype} go with unsigned codes, these are {codes.dtype}")
        zeros = _unsigned(zeros, bits) if signed else zeros.astype(jnp.uint8 if integer else scales.dtype)
    if permutation is not None:
        permutation = jnp.asarray(permutation, jnp.int32)
        if permutation.shape != (*batch, k):
            raise ValueError(
                f"a permutation of the rows of {codes.shape} has shape {(*batch, k)}, not {permutation.shape}"
            )
    if signed:
        codes = _unsigned(codes, bits)
    elif codes.size and not isinstance(codes, Tracer) and int(codes.astype(jnp.uint32).max()) >= 2**bits:
        raise ValueError(f"codes of {bits} bits are below {2**bits}, the largest of these is {codes.max()}")
    (packed,) = of_parts(lambda codes: (pack(codes, bits),), codes, ("packed",), bits, group_size)
    return QuantizedMatrix(packed, scales, zeros, permutation, k, n, bits, group_size)


def pack(codes: jax.Array, bits: int) -> jax.Array:
    """The packed array of unsigned codes (..., K, N)."""
    return _packing.pack(codes, bits, middle(bits))


def of_parts(
    function: Callable[[jax.Array], tuple[jax.Array, ...]],
    matrix: jax.Array,
    outs: tuple[str, ...],
    bits: int,
    group_size: int,
) -> tuple[jax.Array, ...]:
    """Arrays of a :class:`QuantizedMatrix`, "packed" ones and those of "groups", that a function makes of a matrix
    (..., K, N): on a mesh of explicit axes, of each device's part of it.
    """
    if not _compat.has_explicit_axes(jax.typeof(matrix).sharding.mesh):
        return function(matrix)
    from jaxgemm._mixed_partition import of_parts_explicit

    return of_parts_explicit(function, matrix, outs, bits, group_size)


def _unsigned(signed: jax.Array, bits: int) -> jax.Array:
    """The codes of signed numbers."""
    return (signed.astype(jnp.int32) + middle(bits)).astype(jnp.uint8)


def codes_of(matrix: QuantizedMatrix) -> jax.Array:
    """The codes (..., K, N) as uint8, in the order of the groups: rows are permuted if the matrix says so. On a mesh of
    explicit axes every device has all of them.
    """
    packed, sharding = matrix.packed, jax.typeof(matrix.packed).sharding
    if _compat.has_explicit_axes(sharding.mesh):
        packed = jax.reshard(packed, sharding.update(spec=PartitionSpec()))
    return _packing.unpack(packed, matrix.k, matrix.n, matrix.bits)
