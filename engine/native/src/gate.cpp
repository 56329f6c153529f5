#include "gate.h"

#include <omp.h>

#include <algorithm>

#include "elementwise.h"
#include "vector.h"

namespace orca {
namespace {

// NaN stays NaN.
f32x16 not_above(f32x16 x, f32x16 limit) {
    return by_registers([](auto value, auto most) { return value > most ? most : value; }, x, limit);
}

f32x16 not_below(f32x16 x, f32x16 limit) {
    return by_registers([](auto value, auto least) { return value < least ? least : value; }, x, limit);
}

template <class T>
void clamped_row(const OrcaGate& kind, const Rows& gate, const Rows& up, const Rows& y, int64_t row, Range columns) {
    const f32x16 most = splat(kind.limit), least = splat(-kind.limit);
    for (int64_t column = columns.begin; column < columns.end; column += kLanes) {
        const int64_t count = std::min<int64_t>(columns.end - column, kLanes);
        const f32x16 open = not_above(take_numbers(row_of<T>(gate, row, column), count), most);
        const f32x16 passed = not_below(not_above(take_numbers(row_of<T>(up, row, column), count), most), least);
        const f32x16 gated = open / (1.0f + exp_of(-kind.alpha * open)) * (passed + 1.0f);
        put_numbers(row_of<T>(y, row, column), gated, count);
    }
}

}  // namespace

void gate_team(const OrcaGate& kind, const Rows& gate, const Rows& up, const Rows& y, int64_t width, int thread, int threads) {
    if (kind.activation != CLAMPED_SWISH) return gated_team(gate, up, y, width, kind.activation, thread, threads);
    const auto [rows, columns] = block_of(y.m, width, thread, threads);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        by_format(y.format, [&](auto* of) {
            clamped_row<std::remove_pointer_t<decltype(of)>>(kind, gate, up, y, row, columns);
        });
    }
}

}  // namespace orca

extern "C" void orca_gate(
    const OrcaGate* kind, const orca::Rows* gate, const orca::Rows* up, const orca::Rows* y, int64_t width, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::gate_team(*kind, *gate, *up, *y, width, omp_get_thread_num(), omp_get_num_threads());
}
