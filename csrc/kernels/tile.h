// The register tiles of the instruction set this source is compiled for, as functions chosen by a weight's format.
#pragma once
#include "vec.h"

#if defined(OCT_VEC_SCALAR)
#include "tile_scalar.h"
#elif defined(OCT_VEC_AVX512)
#include "tile_avx512.h"
#else
#include "tile_avx2.h"
#endif
#include "channel.h"

namespace octavo {
namespace {

constexpr int kMaxPanelColumns = 64;

// out[num_rows][panel columns] = rows x panel, for a fixed number of rows. Every tile sums an output in the same order.
using Tile = void (*)(const uint8_t* rows, int64_t row_bytes, const uint8_t* panel, int64_t num_groups,
                      Prefetch ahead, float* out, int64_t out_stride);

// What a product needs to know of a weight.
struct PanelFormat {
  int columns;
  int64_t num_panels;
  int64_t num_groups;
  int64_t panel_bytes;
};

template <class Format, bool has_outliers>
constexpr Tile grouped_tiles[] = {grouped_tile<Format, has_outliers, 1>, grouped_tile<Format, has_outliers, 2>,
                                  grouped_tile<Format, has_outliers, 3>, grouped_tile<Format, has_outliers, 4>,
#ifndef OCT_VEC_SCALAR
                                  grouped_tile<Format, has_outliers, 5>, grouped_tile<Format, has_outliers, 6>,
#endif
};
template <bool continues>
constexpr Tile bf16_tiles[] = {bf16_tile<1, continues>, bf16_tile<2, continues>, bf16_tile<3, continues>,
                               bf16_tile<4, continues>,
#ifndef OCT_VEC_SCALAR
                               bf16_tile<5, continues>, bf16_tile<6, continues>,
#endif
};
constexpr Tile channel_tiles[] = {channel_tile<1>, channel_tile<2>, channel_tile<3>, channel_tile<4>,
#ifndef OCT_VEC_SCALAR
                                  channel_tile<5>, channel_tile<6>,
#endif
};
static_assert(sizeof(bf16_tiles<false>) / sizeof(Tile) == kMaxTileRows, "a tile for each number of rows");

inline PanelShape grouped_shape(const oct_weight& weight) {
  return panel_shape(kLanes, weight.code_bits, weight.group, weight.has_min != 0);
}

inline PanelFormat panel_format(const oct_weight& weight) {
  PanelFormat format;
  format.num_groups = padded_columns(weight.num_columns) / kGroup;
  if (weight.layout == OCT_LAYOUT_BF16) {
    format.columns = kBf16PanelColumns;
    format.panel_bytes = format.num_groups * kGroup * kBf16PanelColumns * int64_t(sizeof(uint16_t));
  } else if (weight.layout == OCT_LAYOUT_INT8_CHANNEL) {
    format.columns = kChannelColumns;
    format.panel_bytes = channel_panel_bytes(format.num_groups);
  } else {
    PanelShape shape = grouped_shape(weight);
    format.columns = shape.columns;
    format.panel_bytes = format.num_groups * shape.group_bytes;
  }
  format.num_panels = (weight.num_rows + format.columns - 1) / format.columns;
  return format;
}

// The same with the tiles that multiply an operand of a kind that goes with the weight.
struct TiledFormat : PanelFormat {
  const Tile* tiles;       // tiles[r - 1] for r rows, 1..kMaxTileRows
  const Tile* continuing;  // the same adding to what `out` holds, in the order without the cut; null: K is not cut
};

inline const Tile* tiles_for(const oct_weight& weight, int operand_kind) {
  const Tile* tiles = bf16_tiles<false>;
  if (weight.layout == OCT_LAYOUT_BF16) return tiles;
  if (weight.layout == OCT_LAYOUT_INT8_CHANNEL) return channel_tiles;
  bool has_outliers = operand_kind == OCT_BUFFER_OPERAND_INT8_OUTLIERS;
  visit_format(weight, [&](auto tag) {
    tiles = has_outliers ? grouped_tiles<decltype(tag), true> : grouped_tiles<decltype(tag), false>;
  });
  return tiles;
}

inline TiledFormat tiled_format(const oct_weight& weight, int operand_kind) {
  const Tile* continuing = weight.layout == OCT_LAYOUT_BF16 ? bf16_tiles<true> : nullptr;
  return {panel_format(weight), tiles_for(weight, operand_kind), continuing};
}

}  // namespace
}  // namespace octavo
