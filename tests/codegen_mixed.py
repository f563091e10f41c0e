"""What codegen_expectations.py says of the kernels of quantised weights."""

from __future__ import annotations

from typing import Any

from jaxgemm._native import _core
from tests.codegen_instances import AtLeast, Expectation, Instance

MMA_M, MMA_N, MMA_K = 16, 8, 16
STEPS_OF_LDSM = 2  # along K, of tokens that one LDSM.4 loads
TILE_K = _core.PACKED_TILE_K
PARTS_OF_BLOCK = 2  # int4_wgmma multiplies a k-tile in so many groups of wgmmas for each block of columns
WARP_COLUMNS = 16  # of a block
WORD_BYTES = 4  # of a lane's codes of a step
WARPGROUP = 128


def bfloat16(instance: Instance) -> bool:
    return any("bfloat16" in argument for argument in instance.arguments)


def int4_mma(instance: Instance) -> Expectation:
    """What a warp does with its rows of a k-tile."""
    tokens, columns, rows = instance.info.warp_tile
    token_tiles, row_tiles, steps = tokens // MMA_N, columns // MMA_M, rows // MMA_K
    mma = row_tiles * steps * token_tiles
    loads = steps // STEPS_OF_LDSM * token_tiles
    shared = instance.info.cta_tile[1] > columns  # tokens, by warps that have other columns
    return Expectation(
        main_loop=("*MMA",),
        k_tile={
            "LDG.128": row_tiles * (rows // TILE_K),
            "LDSM.16.M88.4": loads,
            "BAR": 1 if shared else 0,
            "*MMA": AtLeast(mma),
            "HMMA.16816.F32.BF16" if bfloat16(instance) else "HMMA.16816.F32": AtLeast(mma),
        },
        kernel={"LDGSTS.128": AtLeast(1), "STG.128": AtLeast(1)},
        only_in_main_loops=("*MMA",),
    )


def int4_tma(instance: Instance) -> Expectation:
    """What a warp does with its slice of a k-tile."""
    tokens, columns, rows = instance.info.warp_tile
    token_tiles, row_tiles, steps = tokens // MMA_N, columns // MMA_M, rows // MMA_K
    mma = row_tiles * steps * token_tiles
    return Expectation(
        main_loop=("*MMA",),
        k_tile={
            "LDS.128": row_tiles * (rows // TILE_K),
            "LDSM.16.M88.4": steps // STEPS_OF_LDSM * token_tiles,
            "BAR": 0,
            "STS": 0,
            "*MMA": mma,
            "HMMA.16816.F32.BF16" if bfloat16(instance) else "HMMA.16816.F32": mma,
        },
        kernel={"UTMALDG": AtLeast(3 + instance.info.cta_tile[2] // rows), "LDGSTS": 0, "STG": AtLeast(1)},
        only_in_main_loops=("*MMA",),
    )


def int4_wgmma(instance: Instance) -> Expectation:
    """Conversion is between the groups of wgmmas of a k-tile: each group's codes are loaded at once."""
    tokens, _, rows = instance.info.cta_tile
    blocks, steps = instance.info.warp_tile[1] // WARP_COLUMNS, rows // MMA_K
    parts = PARTS_OF_BLOCK * blocks
    kind = ".BF16" if bfloat16(instance) else ""
    stream = instance.arguments[-1] == "true"
    # Warps, or a whole warpgroup that gives registers away, produce.
    moves = instance.info.threads % WARPGROUP == 0
    return Expectation(
        main_loop=("*MMA",),
        k_tile={
            "*MMA": steps * blocks,
            f"HGMMA.64x{tokens}x16.F32{kind}": steps * blocks,
            "WARPGROUP.ARRIVE": parts,
            f"LDS.{8 * WORD_BYTES * steps // parts}": parts * blocks,
            # What a rank says, which is read from memory, is not known to be the same for all lanes.
            "R2UR": AtLeast(1) if stream else 0,
            "BAR": 0,
            "STS": 0,
        },
        kernel={
            "UTMALDG": AtLeast(2 + rows // TILE_K),  # codes, scales, and tokens in boxes
            "USETMAXREG": 2 if moves else 0,
            # Of other CTAs' shared memory, or of the workspace.
            "LD": AtLeast(1) if instance.info.split_k and not stream else 0,
            "ST": AtLeast(1) if instance.info.split_k and not stream else 0,
            "STSM": AtLeast(1),
            "ATOMG": 1 if stream else 0,  # a ticket
        },
        only_in_main_loops=("*MMA",),
    )


def instances_of(info: Any) -> int:
    """For each dtype of x, sizes of groups, and with zero points or without; float32 scales in one way. Twice where all
    CTAs may share K. int4_mma leaves out what would spill registers. Where int4_wgmma scales sums of several groups,
    and warpgroups share k-tiles or have several blocks of columns, there is one more for scales of the dtype of x.
    """
    dtypes = len({lhs for lhs, _, _ in info.dtypes})
    rows = info.cta_tile[2] if info.tma else info.warp_tile[2]
    sizes = (rows // info.group_multiple).bit_length()
    instances = 2 * sizes
    if info.family == "int4_wgmma" and (info.config.endswith("_shared") or info.warp_tile[1] > WARP_COLUMNS):
        instances += 2 * sum(_core.scales_sums(*info.warp_tile[:2], 2**i) for i in range(1, sizes))
    if not info.tma:
        tokens = info.warp_tile[0]
        instances += 1 - (tokens > MMA_N) - (tokens > 2 * MMA_N)
    return dtypes * instances * (2 if info.stream_k else 1)
