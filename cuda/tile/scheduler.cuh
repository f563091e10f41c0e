// Which output tile a CTA computes. All tiles of all batches lie on grid.x, the only grid dimension that reaches
// 2^31 - 1 (CUDA C++ programming guide, table "Technical specifications per compute capability").
#pragma once

#include <cstdint>

#include "gemm.h"
#include "launch.cuh"

namespace jaxgemm {

struct TileCoord {
  int64_t batch;
  int64_t row, col;  // first row and column of the tile in out
};

// Tiles of one batch are visited in bands of kBandRows tile rows: CTAs that run at the same time then share
// rows of lhs *and* columns of rhs in the L2 cache, instead of sweeping all of rhs for each tile row.
struct TileGrid {
  static constexpr int kBandRows = 8;
  int tiles_m, tiles_n;
  int cta_m, cta_n;

  __host__ __device__ TileGrid(const Tile& cta_tile, int64_t M, int64_t N)
      : tiles_m(static_cast<int>((M + cta_tile.m - 1) / cta_tile.m)),
        tiles_n(static_cast<int>((N + cta_tile.n - 1) / cta_tile.n)),
        cta_m(cta_tile.m),
        cta_n(cta_tile.n) {}

  __host__ __device__ int64_t ctas(int64_t batch) const { return batch * tiles_m * tiles_n; }

  __device__ TileCoord tile(unsigned cta) const {
    const unsigned tiles_per_batch = static_cast<unsigned>(tiles_m) * static_cast<unsigned>(tiles_n);
    const unsigned batch = cta / tiles_per_batch;
    const unsigned index = cta % tiles_per_batch;
    // No more rows than there are: with 2^31 - 1 tiles at most, this product then fits 32 bits.
    const unsigned band_height = tiles_m < kBandRows ? static_cast<unsigned>(tiles_m) : kBandRows;
    const unsigned tiles_per_band = band_height * static_cast<unsigned>(tiles_n);
    const unsigned band = index / tiles_per_band;
    const unsigned in_band = index % tiles_per_band;
    const unsigned first_row = band * kBandRows;
    const unsigned rows_left = static_cast<unsigned>(tiles_m) - first_row;
    const unsigned band_rows = rows_left < kBandRows ? rows_left : kBandRows;
    return {batch, static_cast<int64_t>(first_row + in_band % band_rows) * cta_m,
            static_cast<int64_t>(in_band / band_rows) * cta_n};
  }
};

}  // namespace jaxgemm
