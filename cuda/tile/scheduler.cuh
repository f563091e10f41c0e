// Which output tile a CTA computes. All tiles of all batches lie on grid.x, the only grid dimension that reaches
// 2^31 - 1 (CUDA C++ programming guide, table "Technical specifications per compute capability").
#pragma once

#include <cstdint>

#include "gemm.h"
#include "launch.cuh"
#include "tile/divisor.cuh"

namespace jaxgemm {

struct TileCoord {
  int64_t batch;
  int64_t row, col;  // first row and column of the tile in out
};

// Tiles of one batch are visited in bands of `rows` tile rows: CTAs that run at the same time then share
// rows of lhs *and* columns of rhs in the L2 cache, instead of sweeping all of rhs for each tile row.
struct TileGrid {
  int rows;
  int tiles_m, tiles_n;
  int cta_m, cta_n;
  // No band has more rows than there are: with 2^31 - 1 tiles at most, the tiles of a band then fit 31 bits.
  Divisor batch_tiles, band_tiles, band_rows, last_band_rows;

  TileGrid(const Tile& cta_tile, int64_t M, int64_t N, int rows = 8)
      : rows(rows),
        tiles_m(static_cast<int>((M + cta_tile.m - 1) / cta_tile.m)),
        tiles_n(static_cast<int>((N + cta_tile.n - 1) / cta_tile.n)),
        cta_m(cta_tile.m),
        cta_n(cta_tile.n),
        batch_tiles(int64_t{tiles_m} * tiles_n),
        band_tiles(int64_t{tiles_m < rows ? tiles_m : rows} * tiles_n),
        band_rows(rows),
        last_band_rows(tiles_m % rows == 0 ? rows : tiles_m % rows) {}

  __host__ __device__ int64_t ctas(int64_t batch) const { return batch * tiles_m * tiles_n; }

  __device__ TileCoord tile(unsigned cta) const {
    const auto [batch, in_batch] = batch_tiles.divide(cta);
    const auto [band, in_band] = band_tiles.divide(in_batch);
    const unsigned first_row = band * static_cast<unsigned>(rows);
    const bool last = first_row + static_cast<unsigned>(rows) > static_cast<unsigned>(tiles_m);
    const auto [col, row] = (last ? last_band_rows : band_rows).divide(in_band);
    return {batch, static_cast<int64_t>(first_row + row) * cta_m, static_cast<int64_t>(col) * cta_n};
  }
};

}  // namespace jaxgemm
