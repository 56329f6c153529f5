// The tile unit (Intel AMX) in software, by the instructions' pseudocode in Intel's Software Developer's Manual, volume 2:
// included ahead of a source, it takes the place of the intrinsics. What would be an illegal instruction there, such as
// tiles whose sizes do not fit together, aborts.

#pragma once

#if defined(__AMX_BF16__)

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emulated {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Tile {
  int rows, row_bytes;
  alignas(64) char data[kRows][kRowBytes];
};

struct Unit {
  bool configured;
  Tile tiles[kTiles];
};

inline thread_local Unit unit;

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tile unit: %s\n", what);
  std::abort();
}

inline Tile& tile(int index) {
  require(unit.configured, "used without a configuration");
  Tile& found = unit.tiles[index];
  require(found.rows > 0, "a tile without rows is used");
  return found;
}

inline void configure(const void* at) {
  uint8_t bytes[64];
  std::memcpy(bytes, at, sizeof bytes);
  require(bytes[0] == 1, "only palette 1 is there");
  for (int i = 2; i < 16; ++i) require(bytes[i] == 0, "a reserved byte is set");
  std::memset(&unit, 0, sizeof unit);
  unit.configured = true;
  for (int i = 0; i < kTiles; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
    const int rows = bytes[48 + i];
    require(rows <= kRows && row_bytes <= kRowBytes, "a tile is too large");
    require((rows == 0) == (row_bytes == 0), "a tile has rows or columns alone");
    unit.tiles[i].rows = rows;
    unit.tiles[i].row_bytes = row_bytes;
  }
}

inline void release() { std::memset(&unit, 0, sizeof unit); }

inline void zero(int index) { std::memset(tile(index).data, 0, sizeof tile(index).data); }

inline void load(int index, const void* base, int64_t stride) {
  Tile& to = tile(index);
  std::memset(to.data, 0, sizeof to.data);
  for (int row = 0; row < to.rows; ++row) {
    std::memcpy(to.data[row], static_cast<const char*>(base) + row * stride, to.row_bytes);
  }
}

inline void store(int index, void* base, int64_t stride) {
  const Tile& from = tile(index);
  for (int row = 0; row < from.rows; ++row) {
    std::memcpy(static_cast<char*>(base) + row * stride, from.data[row], from.row_bytes);
  }
}

inline void check_product(const Tile& sums, const Tile& left, const Tile& right) {
  require(&sums != &left && &sums != &right && &left != &right, "the tiles of a product are not three");
  require(sums.rows == left.rows, "sums and left matrix have other numbers of rows");
  require(sums.row_bytes == right.row_bytes, "sums and right matrix have other numbers of columns");
  require(left.row_bytes == 4 * right.rows, "the left matrix has other columns than the right one rows");
  require(left.row_bytes % 4 == 0 && right.row_bytes % 4 == 0, "columns are no whole numbers of 32 bits");
}

inline float wide(uint16_t number) {
  const uint32_t bits = static_cast<uint32_t>(number) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Even and odd numbers of the depth have sums of their own, which are added to what was there.
inline void multiply_bf16(int to, int by_rows, int by_columns) {
  Tile& sums = tile(to);
  const Tile &left = tile(by_rows), &right = tile(by_columns);
  check_product(sums, left, right);
  for (int row = 0; row < sums.rows; ++row) {
    float even[kRows] = {}, odd[kRows] = {};
    for (int pair = 0; pair < right.rows; ++pair) {
      uint16_t a[2], b[2 * kRows];
      std::memcpy(a, left.data[row] + 4 * pair, sizeof a);
      std::memcpy(b, right.data[pair], sizeof b);
      for (int column = 0; column < kRows; ++column) {
        even[column] += wide(a[0]) * wide(b[2 * column]);
        odd[column] += wide(a[1]) * wide(b[2 * column + 1]);
      }
    }
    float all[kRows];
    std::memcpy(all, sums.data[row], sizeof all);
    for (int column = 0; column < kRows; ++column) all[column] += even[column] + odd[column];
    std::memcpy(sums.data[row], all, sums.row_bytes);
  }
}

inline void multiply_int8(int to, int by_rows, int by_columns) {
  Tile& sums = tile(to);
  const Tile &left = tile(by_rows), &right = tile(by_columns);
  check_product(sums, left, right);
  for (int row = 0; row < sums.rows; ++row) {
    int32_t all[kRows];
    std::memcpy(all, sums.data[row], sizeof all);
    for (int four = 0; four < right.rows; ++four) {
      int8_t a[4], b[kRowBytes];
      std::memcpy(a, left.data[row] + 4 * four, sizeof a);
      std::memcpy(b, right.data[four], sizeof b);
      for (int column = 0; column < kRows; ++column) {
        for (int i = 0; i < 4; ++i) all[column] += static_cast<int32_t>(a[i]) * b[4 * column + i];
      }
    }
    std::memcpy(sums.data[row], all, sums.row_bytes);
  }
}

}  // namespace emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(at) emulated::configure(at)
#define _tile_release() emulated::release()
#define _tile_zero(to) emulated::zero(to)
#define _tile_loadd(to, base, stride) emulated::load(to, base, stride)
#define _tile_stream_loadd(to, base, stride) emulated::load(to, base, stride)
#define _tile_stored(from, base, stride) emulated::store(from, base, stride)
#define _tile_dpbf16ps(to, a, b) emulated::multiply_bf16(to, a, b)
#define _tile_dpbssd(to, a, b) emulated::multiply_int8(to, a, b)
#define syscall(number, ...) ((number) == SYS_arch_prctl ? 0L : syscall(number, ##__VA_ARGS__))  // which lets a process use it

#endif
