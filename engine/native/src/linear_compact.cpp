// Makes packed weights of bfloat16 compact.

#include "linear_compact.h"

#include <omp.h>

#include <algorithm>

#include "team.h"

namespace orca {
namespace {

constexpr int BYTES = 256;
constexpr int64_t STEP = 2 * PANEL;  // weights

// Write the upper bytes of a panel's codes; return the number of weights with another one.
int64_t choose_upper(const bf16* panel, int64_t count, uint8_t* upper) {
    constexpr int PARTS = 4;  // successive weights are counted apart, as they often have the same upper byte
    int32_t parts[PARTS][BYTES] = {};
    for (int64_t i = 0; i < count; i += PARTS) {
        for (int part = 0; part < PARTS; part++) parts[part][panel[i + part] >> 8]++;
    }
    int64_t counts[BYTES], outliers = count;
    uint8_t bytes[BYTES];
    for (int i = 0; i < BYTES; i++) {
        counts[i] = parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i];
        bytes[i] = static_cast<uint8_t>(i);
    }
    std::partial_sort(bytes + 1, bytes + CODES, bytes + BYTES, [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
    std::memcpy(upper, bytes, CODES);
    for (int code = 0; code < CODES; code++) outliers -= counts[upper[code]];
    return outliers;
}

// The code of each upper byte, or NO_CODE.
constexpr uint8_t NO_CODE = CODES;
struct Codes {
    uint8_t of[BYTES];

    explicit Codes(const uint8_t* upper) {
        std::memset(of, NO_CODE, sizeof of);
        for (int code = 0; code < CODES; code++) of[upper[code]] = static_cast<uint8_t>(code);
    }
};

// Write the weights of two steps, from `depth` on: outliers as 0, and apart from `next` on.
inline void write_pair(const bf16* weights, const Codes& codes, int64_t depth, uint8_t* pair, Outlier*& next) {
    for (int64_t column = 0; column < HALF; column++) {
        for (int64_t i = 0; i < 4; i++) {
            const bf16* from = weights + i / 2 * STEP + column * 2 + i % 2;
            const int64_t at = compact_place(column, i);
            uint8_t both = 0;
            for (int half = 0; half < 2; half++) {
                const bf16 value = from[half * 2 * HALF];
                const uint8_t code = codes.of[value >> 8];
                pair[64 * (1 + half) + at] = code == NO_CODE ? 0 : static_cast<uint8_t>(value);
                if (code != NO_CODE) {
                    both |= code << 4 * half;
                } else {
                    *next++ = {static_cast<int32_t>(depth + i), static_cast<uint16_t>(column + half * HALF), value};
                }
            }
            pair[at] = both;
        }
    }
}

void write_panel(const Linear& plain, int64_t panel, const int32_t* first_outlier, Outlier* outliers, char* to) {
    const bf16* from = reinterpret_cast<const bf16*>(panel_of(plain, panel));
    const Codes codes(reinterpret_cast<const uint8_t*>(to));
    const int64_t steps = padded_depth(BF16, plain.k) / 2;
    uint8_t* pairs = reinterpret_cast<uint8_t*>(to + COMPACT_HEAD);
    Outlier* next = outliers + first_outlier[panel];
    for (int64_t step = 0; step < steps; step += 2) {
        write_pair(from + step * STEP, codes, 2 * step, pairs + step / 2 * COMPACT_PAIR, next);
    }
}

}  // namespace
}  // namespace orca

// Whether this library multiplies compact weights.
extern "C" int orca_compact_usable() {
#ifdef ORCA_COMPACT
    return 1;
#else
    return 0;
#endif
}

// Choose each panel's codes: write its head, and the number of its outliers.
extern "C" void orca_compact_begin(const orca::Linear* plain, int32_t* counts, char* to, int threads) {
    const int64_t width = orca::panel_bytes(orca::COMPACT_BF16, plain->k);
    const int64_t count = orca::PANEL * orca::padded_depth(orca::BF16, plain->k);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < orca::panels(plain->n); panel++) {
        const auto* from = reinterpret_cast<const orca::bf16*>(orca::panel_of(*plain, panel));
        auto* head = reinterpret_cast<uint8_t*>(to + panel * width);
        std::memset(head, 0, orca::COMPACT_HEAD);
        counts[panel] = static_cast<int32_t>(orca::choose_upper(from, count, head));
    }
}

// Write the panels, whose heads have been written, and their outliers.
extern "C" void orca_compact_end(
    const orca::Linear* plain, const int32_t* first_outlier, orca::Outlier* outliers, char* to, int threads) {
    const int64_t width = orca::panel_bytes(orca::COMPACT_BF16, plain->k);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < orca::panels(plain->n); panel++) {
        orca::write_panel(*plain, panel, first_outlier, outliers, to + panel * width);
    }
}
