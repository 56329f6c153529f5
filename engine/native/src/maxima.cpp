// The highest number of each row of a matrix, and where it is.

#include "maxima.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "number.h"
#include "stage.h"
#include "team.h"

namespace orca {
namespace {

constexpr int64_t RUN = 1024;  // numbers whose maximum is taken before the place of the highest one is looked for
constexpr int CHAINS = 4;      // of maxima, which hide their latency

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Bits __attribute__((vector_size(64)));

// Comparisons with a NaN are false, so NaNs are noted apart.
struct Maximum {
    Lanes highest = Lanes{} - std::numeric_limits<float>::infinity();
    Bits unordered = {};

    void add(Lanes values) {
        highest = values > highest ? values : highest;
        unordered |= values != values;
    }
};

inline void add(const float* from, Maximum& to, Maximum& also) {
    Lanes values[2];
    std::memcpy(values, from, sizeof values);
    to.add(values[0]);
    also.add(values[1]);
}

inline void add(const bf16* from, Maximum& to, Maximum& also) {
    Bits pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    to.add((Lanes)(pairs << 16));
    also.add((Lanes)(pairs & static_cast<int32_t>(0xffff0000)));
}

// The highest of up to RUN numbers; NaN if one is.
template <class T> float maximum_of(const T* from, int64_t count) {
    Maximum parts[CHAINS];
    int64_t i = 0;
    for (; i + 16 * CHAINS <= count; i += 16 * CHAINS) {
#pragma GCC unroll 2
        for (int chain = 0; chain < CHAINS; chain += 2) add(from + i + 16 * chain, parts[chain], parts[chain + 1]);
    }
    float highest = -std::numeric_limits<float>::infinity();
    bool unordered = false;
    for (; i < count; i++) {
        const float value = load(from + i);
        highest = value > highest ? value : highest;
        unordered |= std::isnan(value);
    }
    for (const Maximum& part : parts) {
        for (int lane = 0; lane < 16; lane++) {
            highest = part.highest[lane] > highest ? part.highest[lane] : highest;
            unordered |= part.unordered[lane] != 0;
        }
    }
    return unordered ? std::numeric_limits<float>::quiet_NaN() : highest;
}

template <class T> Highest highest_in(const T* from, Range columns) {
    Highest best{-std::numeric_limits<float>::infinity(), columns.begin};
    int64_t run = columns.begin;
    for (int64_t begin = columns.begin; begin < columns.end && !std::isnan(best.value); begin += RUN) {
        const float value = maximum_of(from + begin, std::min(RUN, columns.end - begin));
        if (!(value <= best.value)) best.value = value, run = begin;
    }
    for (int64_t i = run; i < std::min(run + RUN, columns.end); i++) {
        const float value = load(from + i);
        if (value == best.value || (std::isnan(value) && std::isnan(best.value))) return {value, i};
    }
    return best;
}

Highest highest_of(const Rows& rows, int64_t row, Range columns) {
    if (rows.format == BF16) return highest_in(static_cast<const bf16*>(rows.data) + row * rows.stride, columns);
    return highest_in(static_cast<const float*>(rows.data) + row * rows.stride, columns);
}

// The highest of adjacent parts of a row.
Highest highest_of(const Highest* parts, int64_t count) {
    Highest best = parts[0];
    for (int64_t part = 1; part < count; part++) {
        if (!std::isnan(best.value) && !(parts[part].value <= best.value)) best = parts[part];
    }
    return best;
}

}  // namespace

void Maxima::begin(int64_t count, int threads) {
    count_ = count;
    parts_per_row_ = count < threads ? threads : 1;
    parts_.resize(count * parts_per_row_);
}

void Maxima::find(const Rows& matrix, int64_t width, const int64_t* rows, Team& team, int thread) {
    for (Stage stage(team, thread, {count_ * parts_per_row_}); stage.take();) {
        stage.offer();
        const int64_t piece = stage.piece(), index = piece / parts_per_row_;
        const Range columns = share(width, piece % parts_per_row_, parts_per_row_);
        const Highest found = highest_of(matrix, rows ? rows[index] : index, columns);
        if (stage.claim()) parts_[piece] = found;
    }
}

void Maxima::end(float* values, int64_t* places) const {
    for (int64_t index = 0; index < count_; index++) {
        const Highest best = highest_of(&parts_[index * parts_per_row_], parts_per_row_);
        values[index] = best.value;
        places[index] = best.at;
    }
}

}  // namespace orca

// Write the highest of the first `width` numbers of `count` rows of `matrix`, and its first place.
extern "C" void orca_maxima(
    const orca::Rows* matrix, int64_t width, const int64_t* rows, int64_t count, float* values, int64_t* places,
    int threads) {
    thread_local orca::Maxima shared;
    orca::Maxima& maxima = shared;
    maxima.begin(count, threads);
    orca::run_team(threads, [&](orca::Team& team, int thread) { maxima.find(*matrix, width, rows, team, thread); });
    maxima.end(values, places);
}
