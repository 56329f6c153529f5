// Makes packed weights of bfloat16 compact.

#include "linear_compact.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "team.h"

#ifdef ORCA_COMPACT
namespace orca {
namespace {

constexpr int BYTES = 256;
constexpr int64_t SAMPLED_STEPS = 128;  // of a panel, from which its codes are chosen

inline __m512i load_half(const char* step, int half) { return _mm512_loadu_si512(step + 64 * half); }

// The lower or the upper bytes of two steps of a half, in the order of `compact_place`.
inline __m512i lower_bytes(const __m512i (&weights)[2]) {
    const __m512i byte = _mm512_set1_epi16(0xff);
    return _mm512_packus_epi16(_mm512_and_si512(weights[0], byte), _mm512_and_si512(weights[1], byte));
}

inline __m512i upper_bytes(const __m512i (&weights)[2]) {
    return _mm512_packus_epi16(_mm512_srli_epi16(weights[0], 8), _mm512_srli_epi16(weights[1], 8));
}

// Write the upper bytes for which a panel's codes stand: 0, and the most frequent of some of its steps.
void choose_upper(const char* panel, int64_t steps, uint8_t* upper) {
    constexpr int PARTS = 4;  // successive weights are counted apart, as they often have the same upper byte
    int32_t parts[PARTS][BYTES] = {};
    const int64_t apart = std::max<int64_t>(steps / SAMPLED_STEPS, 1);
    for (int64_t step = 0; step < steps; step += apart) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(panel + step * STEP_BYTES);
        for (int64_t i = 1; i < STEP_BYTES; i += 2 * PARTS) {
            for (int part = 0; part < PARTS; part++) parts[part][bytes[i + 2 * part]]++;
        }
    }
    int64_t counts[BYTES];
    uint8_t bytes[BYTES];
    for (int i = 0; i < BYTES; i++) {
        counts[i] = parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i];
        bytes[i] = static_cast<uint8_t>(i);
    }
    std::partial_sort(bytes + 1, bytes + CODES, bytes + BYTES, [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
    std::memcpy(upper, bytes, CODES);
}

// Finds the codes of upper bytes.
class Codes {
  public:
    explicit Codes(const uint8_t* upper) {
        for (int code = 0; code < CODES; code++) upper_[code] = _mm512_set1_epi8(static_cast<char>(upper[code]));
    }

    // Those that have one, whose codes are written.
    __mmask64 find(__m512i bytes, __m512i& codes) const {
        __mmask64 found = _mm512_cmpeq_epi8_mask(bytes, upper_[0]);
        codes = _mm512_setzero_si512();
        for (int code = 1; code < CODES; code++) {
            const __mmask64 equal = _mm512_cmpeq_epi8_mask(bytes, upper_[code]);
            codes = _mm512_mask_mov_epi8(codes, equal, _mm512_set1_epi8(static_cast<char>(code)));
            found |= equal;
        }
        return found;
    }

  private:
    __m512i upper_[CODES];
};

// Call `take(step, half, weights, codes, which have one)` for both halves of each pair of a panel's steps.
template <class Take> void for_each_half(const char* panel, int64_t steps, const Codes& codes, Take take) {
    for (int64_t step = 0; step < steps; step += 2, panel += 2 * STEP_BYTES) {
        for (int half = 0; half < 2; half++) {
            const __m512i weights[2] = {load_half(panel, half), load_half(panel + STEP_BYTES, half)};
            __m512i found;
            const __mmask64 coded = codes.find(upper_bytes(weights), found);
            take(step, half, weights, found, coded);
        }
    }
}

int32_t count_outliers(const char* panel, int64_t steps, const uint8_t* upper) {
    int64_t count = 0;
    for_each_half(panel, steps, Codes(upper), [&](int64_t, int, const __m512i (&)[2], __m512i, __mmask64 coded) {
        count += __builtin_popcountll(~coded);
    });
    return static_cast<int32_t>(count);
}

// List the weights of a half whose bits are set, from step `step` on.
inline void list_outliers(const char* panel, int64_t step, int half, uint64_t which, Outlier*& next) {
    for (; which != 0; which &= which - 1) {
        const int64_t at = __builtin_ctzll(which), i = at % 16 / 8 * 2 + at % 2;  // see `compact_place`
        const int64_t column = half * HALF + at / 16 * 4 + at % 8 / 2;
        bf16 value;
        std::memcpy(&value, panel + (step + i / 2) * STEP_BYTES + (column * 2 + i % 2) * sizeof value, sizeof value);
        *next++ = {static_cast<int32_t>(2 * step + i), static_cast<uint16_t>(column), value};
    }
}

// Write the pairs of a panel whose head has been written: outliers as 0, and apart, to `next`.
void write_panel(const char* panel, int64_t steps, Outlier* next, char* to) {
    const Codes codes(reinterpret_cast<const uint8_t*>(to));
    char* pair = to + COMPACT_HEAD;
    __m512i first = _mm512_setzero_si512();
    const auto write = [&](int64_t step, int half, const __m512i (&weights)[2], __m512i found, __mmask64 coded) {
        _mm512_storeu_si512(pair + 64 * (1 + half), _mm512_maskz_mov_epi8(coded, lower_bytes(weights)));
        list_outliers(panel, step, half, ~coded, next);
        if (half == 0) {
            first = found;
            return;
        }
        _mm512_storeu_si512(pair, _mm512_or_si512(first, _mm512_slli_epi16(found, 4)));
        pair += COMPACT_PAIR;
    };
    for_each_half(panel, steps, codes, write);
}

}  // namespace
}  // namespace orca
#endif

// Whether this library multiplies compact weights.
extern "C" int orca_compact_usable() {
#ifdef ORCA_COMPACT
    return 1;
#else
    return 0;
#endif
}

#ifdef ORCA_COMPACT
// Choose each panel's codes: write its head, and the number of its outliers.
extern "C" void orca_compact_begin(const orca::Linear* plain, int32_t* counts, char* to, int threads) {
    const int64_t width = orca::panel_bytes(orca::COMPACT_BF16, plain->k);
    const int64_t steps = orca::padded_depth(orca::BF16, plain->k) / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t index = 0; index < orca::panels(plain->n); index++) {
        const char* panel = orca::panel_of(*plain, index);
        auto* head = reinterpret_cast<uint8_t*>(to + index * width);
        std::memset(head, 0, orca::COMPACT_HEAD);
        orca::choose_upper(panel, steps, head);
        counts[index] = orca::count_outliers(panel, steps, head);
    }
}

// Write the panels, whose heads have been written, and their outliers.
extern "C" void orca_compact_end(
    const orca::Linear* plain, const int32_t* first_outlier, orca::Outlier* outliers, char* to, int threads) {
    const int64_t width = orca::panel_bytes(orca::COMPACT_BF16, plain->k);
    const int64_t steps = orca::padded_depth(orca::BF16, plain->k) / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t index = 0; index < orca::panels(plain->n); index++) {
        orca::write_panel(orca::panel_of(*plain, index), steps, outliers + first_outlier[index], to + index * width);
    }
}
#else
extern "C" void orca_compact_begin(const orca::Linear*, int32_t*, char*, int) {}
extern "C" void orca_compact_end(const orca::Linear*, const int32_t*, orca::Outlier*, char*, int) {}
#endif
