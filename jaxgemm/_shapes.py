"""The shape work of ``matmul``: jnp.matmul's broadcasting as one dot_general."""

import dataclasses

from jaxgemm._plan import DimensionNumbers, Dims

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MatmulShapes:
    """How operands of jnp.matmul become those of one dot_general, without copying either.

    Attributes:
      lhs_squeeze, rhs_squeeze: dimensions of size 1 to drop first: the other operand is larger there.
      dimension_numbers: of the squeezed operands. Batch dimensions that both have are batch; those that one has are
        free dimensions of it.
      permutation: brings the result of dot_general into jnp.matmul's order of dimensions.
      out_shape: after the permutation.
      has_n: whether the last dimension of the result is rhs's (rhs is no vector).
      rhs_keeps_batch: whether rhs has free dimensions besides N.
    """

    lhs_squeeze: Dims
    rhs_squeeze: Dims
    dimension_numbers: DimensionNumbers
    permutation: Dims
    out_shape: Shape
    has_n: bool
    rhs_keeps_batch: bool


def matmul_shapes(lhs: Shape, rhs: Shape) -> MatmulShapes:
    """The arrangement for operands of these shapes.

    Raises:
      TypeError: an operand without dimensions, or contracted dimensions of different sizes.
      ValueError: batch dimensions that do not broadcast.
    """
    if not lhs or not rhs:
        raise TypeError(
            f"jaxgemm.matmul takes operands of one or more dimensions, got shapes {lhs} and {rhs}: use lhs * rhs"
        )
    rhs_k = max(len(rhs) - 2, 0)
    if lhs[-1] != rhs[rhs_k]:
        raise TypeError(
            f"jaxgemm.matmul cannot contract lhs of shape {lhs} with rhs of shape {rhs}: K={lhs[-1]} (last dimension "
            f"of lhs) is not K={rhs[rhs_k]} (dimension {rhs_k} of rhs). Transpose an operand, or name the dimensions "
            "with jaxgemm.dot_general"
        )
    # Batch dimensions are numbered as in the result; operand dimension d is number d + first.
    depth = max(len(lhs) - 2, len(rhs) - 2, 0)
    lhs_first, rhs_first = depth - max(len(lhs) - 2, 0), depth - max(len(rhs) - 2, 0)
    both, lhs_only, rhs_only, lhs_squeeze, rhs_squeeze = [], [], [], [], []
    batch_shape = []
    for i in range(depth):
        left = lhs[i - lhs_first] if i >= lhs_first else None
        right = rhs[i - rhs_first] if i >= rhs_first else None
        if left is not None and left == right:
            both.append(i)
        elif left is None or (left == 1 and right is not None):
            rhs_only.append(i)
            lhs_squeeze += [] if left is None else [i]
        elif right is None or right == 1:
            lhs_only.append(i)
            rhs_squeeze += [] if right is None else [i]
        else:
            raise ValueError(
                f"jaxgemm.matmul cannot broadcast the batch dimensions of lhs {lhs} and rhs {rhs}: {left} is neither "
                f"{right} nor 1. Reshape an operand"
            )
        batch_shape.append(right if i in rhs_only else left)
    lhs_batch = [i for i in range(lhs_first, depth) if i not in lhs_squeeze]
    rhs_batch = [i for i in range(rhs_first, depth) if i not in rhs_squeeze]
    m, n = ([depth] if len(lhs) > 1 else []), ([depth + 1] if len(rhs) > 1 else [])
    produced = both + lhs_only + m + rhs_only + n
    return MatmulShapes(
        lhs_squeeze=tuple(i - lhs_first for i in lhs_squeeze),
        rhs_squeeze=tuple(i - rhs_first for i in rhs_squeeze),
        dimension_numbers=(
            ((len(lhs_batch) + len(m),), (len(rhs_batch),)),
            (tuple(lhs_batch.index(i) for i in both), tuple(rhs_batch.index(i) for i in both)),
        ),
        permutation=tuple(produced.index(i) for i in sorted(produced)),
        out_shape=(*batch_shape, *(lhs[-2:-1] if m else ()), *(rhs[-1:] if n else ())),
        has_n=bool(n),
        rhs_keeps_batch=bool(rhs_only),
    )
