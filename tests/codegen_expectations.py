"""Which instructions the machine code of each family holds, derived from the kernel's tile.

A family has one row in EXPECTATIONS: a function of an instance (one instantiation of one kernel of the registry) that
says what its main loop holds for each k-tile. How many k-tiles one turn of the loop takes is ptxas' business (naive's
are unrolled), but all counts must agree on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from jaxgemm._native import _core
from tests import codegen_mixed
from tests.codegen_instances import WARP, AtLeast, Count, Expectation, Instance, share
from tests.helpers import problem

VECTOR_BYTES = 16  # of the widest access to memory
WORD_BYTES = 4
FRAGMENT = 16  # wmma's M, N and K
HMMA_N = 8  # HMMA.16816 multiplies 16 x 16 by 16 x 8: half of what wmma.mma does
WARPGROUP, WGMMA_M, WGMMA_STEPS = 128, 64, 4  # steps along K of a k-tile, which is 128 bytes long
BOX = 64  # elements along M or N that one copy of TMA brings
LDSM_MATRIX = 8  # rows and columns of what LDSM and MOVM handle; LDSM.4 loads four


def outputs_per_thread(instance: Instance) -> int:
    m, n, _ = instance.info.cta_tile
    return share(m * n, instance.info.threads)


def naive(instance: Instance) -> Expectation:
    fmas = outputs_per_thread(instance) * instance.info.cta_tile[2]
    return Expectation(
        main_loop=("FFMA", "LDG"),
        k_tile={"FFMA": fmas, "LDG": 2 * fmas, "LDG.128": 0},
        kernel={"*MMA": 0, "LDS": 0, "STS": 0},
    )


def smem_tiled(instance: Instance) -> Expectation:
    m, n, k = instance.info.cta_tile
    fmas = outputs_per_thread(instance) * k
    staged = share((m + n) * k, instance.info.threads)
    return Expectation(
        main_loop=("FFMA", "LDS"),
        k_tile={"BAR": 2, "FFMA": fmas, "LDS": 2 * fmas, "LDG": staged, "STS": staged},
        kernel={"*MMA": 0},
    )


def register_tiled(instance: Instance) -> Expectation:
    m, n, k = instance.info.cta_tile
    outputs = outputs_per_thread(instance)
    side = math.isqrt(outputs)  # a thread's block of out is a square
    assert side * side == outputs
    vector = VECTOR_BYTES // WORD_BYTES
    vectors = [share(extent * k, instance.info.threads * vector) for extent in (m, n)]  # that a thread stages
    # An operand that is contiguous along k is transposed on its way into shared memory, word by word.
    scattered = [not instance.transposed[0], instance.transposed[1]]
    stores = [v * (vector if words else 1) for v, words in zip(vectors, scattered, strict=True)]
    fragments = share(2 * side, vector) * k
    return Expectation(
        main_loop=("FFMA", "LDS"),
        k_tile={
            "BAR": 1,
            "FFMA": outputs * k,
            "LDS": fragments,
            "LDS.128": fragments,
            "STS": sum(stores),
            "STS.128": sum(v for v, words in zip(vectors, scattered, strict=True) if not words),
            "LDG.128": AtLeast(sum(vectors)),  # the paths of interior and edge tiles, which ptxas may merge
        },
        kernel={"*MMA": 0, "STG.128": AtLeast(1)},
    )


def tensor_core_loop(instance: Instance) -> dict[str, Count]:
    """Of kernels that give wmma 16 x 16 fragments from shared memory. A fragment is four 8 x 8 matrices: one LDSM."""
    warp_m, warp_n, k = instance.info.warp_tile
    slices = share(k, FRAGMENT * instance.warps_k)
    lhs, rhs = share(warp_m, FRAGMENT) * slices, share(warp_n, FRAGMENT) * slices
    # The tensor core wants A row-major and B column-major; LDSM turns what lies in memory the other way.
    turned = lhs * instance.transposed[0] + rhs * (not instance.transposed[1])
    hmma = share(warp_m, FRAGMENT) * share(warp_n, HMMA_N) * slices
    bfloat16 = "__nv_bfloat16" in instance.arguments
    return {
        "*MMA": hmma,
        "HMMA.16816.F32": hmma,
        "HMMA.BF16": hmma if bfloat16 else 0,
        "FFMA": 0,
        "LDSM.4": lhs + rhs,
        "LDSM.MT88": turned,
        "LDSM.M88": lhs + rhs - turned,
    }


def fragment_stores(fragments: int) -> int:
    """STS.64 by which wmma.store writes float32 accumulators."""
    return fragments * share(FRAGMENT * FRAGMENT, WARP * 2)


def wmma_naive(instance: Instance) -> Expectation:
    fragment_words = share(FRAGMENT * FRAGMENT * 2, WARP * WORD_BYTES)  # that a lane loads of one operand
    turned = instance.transposed[0] + (not instance.transposed[1])
    return Expectation(
        main_loop=("HMMA",),
        k_tile={
            "BAR": 2 * 2,  # around the staging of an operand that wmma can't read in place
            **tensor_core_loop(instance),
            "LDG.E": AtLeast(2 * fragment_words),
            "LDG.U16": AtLeast(2),  # the copies of the staging are loops, unrolled as ptxas likes
            "MOVM.MT88": turned * (FRAGMENT // LDSM_MATRIX) ** 2,  # what LDSM does for shared memory
        },
        kernel={"STS.64": fragment_stores(1), "LDS.128": AtLeast(1), "STG.128": AtLeast(1)},
        only_in_main_loops=("*MMA", "LDSM"),
    )


def wmma_tiled(instance: Instance) -> Expectation:
    m, n, k = instance.info.cta_tile
    elems = VECTOR_BYTES // 2
    vectors = share((m + n) * k, elems * instance.info.threads)  # that a thread stages
    fragments_n = share(instance.info.warp_tile[1], FRAGMENT)
    return Expectation(
        main_loop=("HMMA",),
        k_tile={
            "BAR": 1,
            **tensor_core_loop(instance),
            "LDG.128": vectors,
            "LDG.U16": vectors * elems,  # of operands whose rows are not whole vectors
            "STS": vectors,
            "STS.128": vectors,
        },
        kernel={
            "STS.64": fragment_stores(fragments_n),  # a strip: the first row of fragments
            "LDS": instance.warps_k,  # partial sums of four columns, one from each warp that shares the tile
            "LDS.128": instance.warps_k,
            "STG.128": AtLeast(1),
        },
        only_in_main_loops=("*MMA", "LDSM"),
    )


# Of the mma rungs, by their Op: bytes of an element, opcode, and how often it is issued for one step of one fragment.
_MMA_OPS = {
    "Mma16<__half>": (2, "HMMA.16816.F32", 1),
    "Mma16<__nv_bfloat16>": (2, "HMMA.16816.F32.BF16", 1),
    "MmaTf32": (4, "HMMA.1688.F32.TF32", 1),
    "MmaTf32x3": (4, "HMMA.1688.F32.TF32", 3),
    "MmaS8": (1, "IMMA.16832.S8.S8", 1),
}
_MMA_STEP_BYTES = 32  # of K, in every format


def mma_steps(instance: Instance) -> int:
    """Of one warp along a k-tile."""
    element_bytes = _MMA_OPS[instance.arguments[0]][0]
    return share(instance.info.warp_tile[2] * element_bytes, _MMA_STEP_BYTES * instance.warps_k)


def mma_counts(instance: Instance) -> dict[str, int]:
    """The multiply-adds of one k-tile. There is one instruction for each 16 x 8 of out, and one k-tile to a turn."""
    _, opcode, times = _MMA_OPS[instance.arguments[0]]
    warp_m, warp_n, _ = instance.info.warp_tile
    mma = share(warp_m, FRAGMENT) * share(warp_n, HMMA_N) * mma_steps(instance) * times
    return {"*MMA": mma, opcode: mma}


def ldmatrix_counts(instance: Instance) -> dict[str, int]:
    """What brings the fragments of one k-tile from shared memory. LDSM turns elements of 16 bits, and pairs of 8; of 32
    bits, what lies along M or N is loaded word by word.
    """
    element_bytes, steps = _MMA_OPS[instance.arguments[0]][0], mma_steps(instance)
    warp_m, warp_n, _ = instance.info.warp_tile
    lhs, rhs = share(warp_m, FRAGMENT) * steps, share(warp_n, FRAGMENT) * steps
    along_mn = lhs * instance.transposed[0] + rhs * (not instance.transposed[1])
    words = element_bytes == WORD_BYTES
    return {
        "LDSM.M88": lhs + rhs - along_mn,
        "LDSM.MT88": 0 if words else along_mn,
        "LDSM.4": lhs + rhs - along_mn * words,
        "LDS": 4 * along_mn * words,
    }


def mma(instance: Instance) -> Expectation:
    """Fragments from global memory: of 16 bytes of K, a lane loads a vector of each of its rows or columns; or, of what
    lies along M or N, for each k as much as it has neighbours, in vectors of up to 16 bytes. Where several k-tiles are
    loaded at once, those of operands that both lie along K, of others half of them.
    """
    element_bytes = _MMA_OPS[instance.arguments[0]][0]
    loads = {4: 0, 8: 0, 16: 0}
    along_mn = instance.transposed[0], not instance.transposed[1]
    for extent, turned in zip(instance.info.warp_tile[:2], along_mn, strict=True):
        neighbours = share(extent, LDSM_MATRIX)
        if turned:
            run_bytes = neighbours * element_bytes
            width = min(run_bytes, VECTOR_BYTES)
            loads[width] += share(VECTOR_BYTES, element_bytes) * share(run_bytes, width)
        else:
            loads[VECTOR_BYTES] += neighbours
    at_once = instance.info.tiles_at_once
    way_out: dict[str, Count] = {"STG.128": AtLeast(1)}
    if at_once > 1:
        at_once = at_once // 2 if any(along_mn) else at_once
        # From registers: a lane holds two neighbours of a row, or, of columns that lie along N, four. Or each of its
        # elements through shared memory, in every dtype of out; but for sums that may be computed again.
        dtypes = {"MmaTf32": 1, "MmaTf32x3": 0}.get(instance.arguments[0], 2)
        elements = share(instance.info.warp_tile[0] * instance.info.warp_tile[1], 32)
        way_out = {
            "BAR": dtypes,
            "STS": dtypes * elements,
            "LDS.128": AtLeast(1) if dtypes else 0,
            "STG.128" if along_mn[1] else "STG.64": AtLeast(1),
        }
    return Expectation(
        main_loop=("*MMA",),  # two: the k-tiles that are loaded in vectors, and those that are not
        k_tile={**mma_counts(instance), "LDSM": 0, "LDS": 0, "STS": 0, "LDGSTS": 0, "BAR": 0},
        kernel={"LDG.128": loads[16] * at_once, "LDG.64": loads[8] * at_once, **way_out},
        only_in_main_loops=("*MMA",),
    )


def tile_vectors(instance: Instance) -> int:
    """Of both operands' k-tiles, those that a thread copies."""
    m, n, k = instance.info.cta_tile
    return share((m + n) * k * _MMA_OPS[instance.arguments[0]][0], VECTOR_BYTES * instance.info.threads)


def moved_counts(instance: Instance) -> dict[str, int]:
    """Of a k-tile of operands that may have to be moved within shared memory (cuda/tile/shifted_tile.cuh): of each, one
    vector more is copied and loaded, and one, which may begin before the operand, is stored."""
    counts, both = mma_counts(instance) | ldmatrix_counts(instance), tile_vectors(instance) + 2
    moves = {"LDS": counts["LDS"] + both, "LDS.128": both, "STS": both, "STS.128": both}
    return counts | moves | {"LDGSTS": both, "LDGSTS.128": both}


def mma_ldmatrix(instance: Instance) -> Expectation:
    return Expectation(
        main_loop=("*MMA",),
        k_tile={"BAR": 3, **moved_counts(instance)},
        kernel={"STG.128": AtLeast(1)},
        only_in_main_loops=("*MMA", "LDSM"),
    )


def mma_multistage(instance: Instance) -> Expectation:
    if instance.arguments[1] == "false":
        return Expectation(
            main_loop=("*MMA",),
            k_tile={"BAR": 2, **moved_counts(instance)},
            kernel={"STG.128": AtLeast(1)},
            only_in_main_loops=("*MMA", "LDSM"),
        )
    vectors = tile_vectors(instance)
    copies = {"LDGSTS": vectors, "LDGSTS.128": vectors, "LDG": 0, "STS": 0}
    return Expectation(
        main_loop=("*MMA",),
        k_tile={"BAR": 1, **mma_counts(instance), **ldmatrix_counts(instance), **copies},
        kernel={"STG.128": AtLeast(1)},
        only_in_main_loops=("*MMA",),
    )


# wgmma's instruction for the operands of an Op.
_GMMA = {
    ("float32", "float32"): "HGMMA.64x{n}x8.F32.TF32",
    ("float16", "float16"): "HGMMA.64x{n}x16.F32",
    ("bfloat16", "bfloat16"): "HGMMA.64x{n}x16.F32.BF16",
    ("int8", "int8"): "IGMMA.64x{n}x32.S8.S8",
    **{
        (f"float8_{lhs}", f"float8_{rhs}"): f"QGMMA.64x{{n}}x32.F32.{lhs[:4].upper()}.{rhs[:4].upper()}"
        for lhs in ("e4m3fn", "e5m2")
        for rhs in ("e4m3fn", "e5m2")
    },
}
_PLAIN, _CLUSTER = 0, 1  # of Way (cuda/tile/sm90_schedule.cuh)


def wgmma(instance: Instance) -> Expectation:
    m, n, _ = instance.info.cta_tile
    arguments = ", ".join(instance.arguments)
    products = 3 if "Tf32x3" in arguments else 1
    # DTypes are printed as numbers, x3's not at all.
    lhs, rhs = [_core.dtypes()[int(number)] for number in re.findall(r"DType\)(\d+)", arguments)] or ["float32"] * 2
    (way,) = map(int, re.findall(r"Way\)(\d+)", arguments))
    if lhs not in ("float16", "bfloat16") and not instance.transposed[1]:
        return wgmma_rhs_in_registers(instance, way, lhs, rhs)
    blocks = share(instance.info.warp_tile[0], WGMMA_M // 4)
    mma = blocks * WGMMA_STEPS * products
    boxes = (share(m, BOX) if instance.transposed[0] else 1) + 1  # of lhs, and of rhs at least
    roles = 2 if instance.info.threads > 2 * WARPGROUP else 0
    k_tile: dict[str, Count] = {"*MMA": mma, _GMMA[lhs, rhs].format(n=n): mma, "BAR": 0, "LDS": 0, "STS": 0}
    if n > BOX:  # else two k-tiles go to a step
        k_tile["WARPGROUP.ARRIVE"] = 1
    kernel: dict[str, Count] = {"UTMALDG": AtLeast(boxes), "USETMAXREG": roles}
    if way == _CLUSTER:
        kernel |= {"UTMASTG": 0, "STSM": 0}
    else:
        kernel |= {"UTMASTG": AtLeast(1), "STSM": AtLeast(1) if lhs not in ("float32", "int8") else 0}
    if way != _PLAIN and instance.info.split_k and instance.info.cluster_ctas == 1:
        kernel["LD"] = AtLeast(1)  # of other CTAs' shared memory
    # Sums that the tensor cores would truncate too much are added up outside of them, and nothing else is if plain.
    apart = blocks * n // 2 if products == 3 or (lhs.startswith("float8") and instance.info.highest) else 0
    kernel["FADD"] = apart if way == _PLAIN else AtLeast(apart)
    if way == _PLAIN:
        kernel["STG"] = 0
    return Expectation(main_loop=("*MMA",), k_tile=k_tile, kernel=kernel, only_in_main_loops=("*MMA",))


def wgmma_rhs_in_registers(instance: Instance, way: int, lhs: str, rhs: str) -> Expectation:
    """Wgmma's A is rhs, and its B lhs."""
    m, n, _ = instance.info.cta_tile
    consumers = instance.info.threads // WARPGROUP - 1
    blocks = n // consumers // WGMMA_M
    mma = blocks * WGMMA_STEPS
    k_tile: dict[str, Count] = {
        "*MMA": mma, _GMMA[rhs, lhs].format(n=m): mma, "WARPGROUP.ARRIVE": WGMMA_STEPS, "BAR": 0, "STS": 0,
    }  # fmt: skip
    if lhs == "float32":  # two pairs to a fragment
        k_tile |= {"LDS.64": 2 * mma, "LDS": 2 * mma}
    else:  # a fragment by each, whose bytes are then put in order
        k_tile |= {"LDSM.16.MT88.4": mma, "LDSM": mma, "LDS": 0}
    kernel: dict[str, Count] = {"UTMALDG": AtLeast(2), "USETMAXREG": 2 if consumers > 1 else 0}
    kernel["UTMASTG"] = 0 if lhs == "float32" or way == _CLUSTER else AtLeast(1)
    if way == _PLAIN:
        kernel |= {"STG.E.128": m // 4, "STG": m // 4, "FADD": 0}
    elif instance.info.cluster_ctas == 1:
        kernel["LD"] = AtLeast(1)  # of other CTAs' shared memory
    if lhs.startswith("float8") and instance.info.highest:
        kernel["FADD"] = AtLeast(blocks * m // 2)  # of sums that the tensor cores would truncate too much
    return Expectation(main_loop=("*MMA",), k_tile=k_tile, kernel=kernel, only_in_main_loops=("*MMA",))


def gemv(instance: Instance) -> Expectation:
    _, n, k = instance.info.cta_tile
    elems = share(n * k, instance.info.threads)  # of the matrix, that a thread has of a k-tile
    vectors, along_k = (argument == "true" for argument in instance.arguments[-2:])
    row = elems if along_k else max(1, elems // n)  # elements that the matrix's are multiplied with
    loads = {"LDG.128": 1 + along_k} if vectors else {"LDG.128": 0, "LDG": elems + row}
    return Expectation(
        main_loop=("FFMA", "LDG"),
        k_tile={"FFMA": elems, **loads},
        kernel={"*MMA": 0, "SHFL": AtLeast(1), "BAR": 1},
    )


EXPECTATIONS: dict[str, Callable[[Instance], Expectation]] = {
    "naive": naive,
    "smem_tiled": smem_tiled,
    "register_tiled": register_tiled,
    "wmma_naive": wmma_naive,
    "wmma_tiled": wmma_tiled,
    "mma": mma,
    "mma_ldmatrix": mma_ldmatrix,
    "mma_multistage": mma_multistage,
    "wgmma": wgmma,
    "gemv": gemv,
    "int4_mma": codegen_mixed.int4_mma,
    "int4_tma": codegen_mixed.int4_tma,
    "int4_wgmma": codegen_mixed.int4_wgmma,
}

# Families whose template has a further parameter of two values.
_TWO_VARIANTS = {"mma_multistage"}

# Kernels that are no row of the registry, by name without template arguments: what the whole kernel holds.
HELPERS: dict[str, dict[str, Count]] = {
    "k_major_copy.cu: k_major_copy_kernel": {"LDG": AtLeast(1), "STG": AtLeast(1)},
    "pad_copy.cu: pad_copy_kernel": {"LDG.128": AtLeast(1), "STG.128": AtLeast(1)},
    "peer_sum.cu: peer_sum_kernel": {"LDG.128.STRONG.SYS": AtLeast(2), "STG.128.STRONG.SYS": AtLeast(1), "MEMBAR": 0},
    "split_k.cu: split_k_reduce_kernel": {"LDG.128": AtLeast(1), "STG.128": AtLeast(1)},
    "zero_words.cu: zero_words_kernel": {"STG": AtLeast(1)},
}

# Every kernel; a family's own counts come before these. Local memory is spilled registers, or an array that is indexed
# at run time; generic loads and stores are pointers whose memory the compiler lost track of.
EVERYWHERE: dict[str, Count] = {"LDL": 0, "STL": 0, "LD": 0, "ST": 0}


def instances_of(info: Any) -> int:
    """How often a kernel's template is instantiated: for each dtype of the operands, once more where TF32 is a way of
    multiplying float32; in each layout, and each way that the template knows.
    """
    if info.bits:
        return codegen_mixed.instances_of(info)
    pairs = len({(lhs, rhs) for lhs, rhs, _ in info.dtypes})
    ops = pairs + (info.tf32 and info.highest)
    if info.family == "wgmma":  # K contiguous but for 16-bit elements; plain but for 3xTF32, in clusters, and any
        layouts = len(info.layouts) if info.cta_tile[2] == BOX else 1
        ways = 1 + (info.cluster_ctas == 1 and info.split_k)
        # Rhs along N that is not copied though wgmma wants it along K: through registers; bytes have no plain one.
        lhs, rhs, out = info.dtypes[0]
        nn = problem(*info.cta_tile, layout="NN", lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out)
        rhs_in_registers = layouts == 1 and _core.workspace_bytes(info.name, nn) == 0
        return layouts * (pairs + ops * ways) + rhs_in_registers * pairs * (info.tf32 + ways)
    if info.family == "gemv":  # the matrix along K or N, by vectors or elements: no vectors of more than a tile along N
        elems = share(info.cta_tile[1] * info.cta_tile[2], info.threads)
        return ops * (4 - (info.cta_tile[1] < elems))
    return ops * len(info.layouts) * (2 if info.family in _TWO_VARIANTS else 1)
