// Number formats.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace orca {

enum Format : int32_t { F32 = 0, BF16 = 1, INT8 = 2, FP8 = 3, COMPACT_BF16 = 4 };

using bf16 = uint16_t;

inline float widen(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Round to nearest, ties to even; NaN stays NaN.
inline bf16 narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<bf16>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

inline float load(const float* from) { return *from; }
inline float load(const bf16* from) { return widen(*from); }
inline float load(const int8_t* from) { return *from; }
inline void store(float* to, float value) { *to = value; }
inline void store(bf16* to, float value) { *to = narrow(value); }

// Of a number; COMPACT_BF16 has none of its own.
inline int64_t bytes_of(int32_t format) { return format == F32 ? 4 : format == BF16 ? 2 : 1; }

// Call compute with a null pointer to the type of a format's numbers: BF16 or F32.
template <class Compute> inline void by_format(int32_t format, Compute compute) {
    if (format == BF16) return compute(static_cast<bf16*>(nullptr));
    compute(static_cast<float*>(nullptr));
}

}  // namespace orca
