// Products of bfloat16 matrices on the tile unit (Intel AMX): 16 rows of 32 numbers times 32 x 16.

#pragma once

#if defined(__AMX_BF16__)

#include <cstdint>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace orca {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 32;  // numbers per row of the left matrix

// The kernel grants a process the tile registers on request.
inline bool may_use_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The rows of the eight tiles, and their bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// While an instance lives, its thread has tiles, by default of 16 rows of 64 bytes.
class TileRegisters {
 public:
  explicit TileRegisters(const TileShapes& shapes = {}) { shape(shapes); }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  static void shape(const TileShapes& shapes) {
    asm volatile("" : : "r"(&shapes) : "memory");  // GCC 12 assumes that the next instruction reads eight bytes
    _tile_loadconfig(&shapes);
  }
};

// One or two blocks of 16 rows of a matrix, `step` bytes apart; rows are `stride` bytes apart.
struct Blocks {
  const char* first;
  int64_t step, stride;
  bool two;
};

// Two by two tiles of sums, += left x right over `depth` blocks of 32; from block to block the left matrix advances by
// 64 bytes, the right one by `right_depth` bytes. `sums` are float32; with `fresh` they start from 0.
inline void multiply_tiles(const Blocks& left, const Blocks& right, int64_t depth, int64_t right_depth,
                           const Blocks& sums, int64_t sums_right, bool fresh) {
  char* out = const_cast<char*>(sums.first);
  char* below = out + sums.step;
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, out, sums.stride);
    if (right.two) _tile_loadd(1, out + sums_right, sums.stride);
    if (left.two) _tile_loadd(2, below, sums.stride);
    if (left.two && right.two) _tile_loadd(3, below + sums_right, sums.stride);
  }
  for (int64_t block = 0; block < depth; ++block) {
    const char* a = left.first + block * 64;
    const char* b = right.first + block * right_depth;
    _tile_loadd(4, a, left.stride);
    _tile_loadd(6, b, right.stride);
    _tile_dpbf16ps(0, 4, 6);
    if (right.two) {
      _tile_loadd(7, b + right.step, right.stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (left.two) {
      _tile_loadd(5, a + left.step, left.stride);
      _tile_dpbf16ps(2, 5, 6);
      if (right.two) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, sums.stride);
  if (right.two) _tile_stored(1, out + sums_right, sums.stride);
  if (left.two) _tile_stored(2, below, sums.stride);
  if (left.two && right.two) _tile_stored(3, below + sums_right, sums.stride);
}

}  // namespace orca

#endif
