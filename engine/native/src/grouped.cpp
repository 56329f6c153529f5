// Linear layers of groups of rows. The threads take pieces, columns of one group, each computed by one thread alone: a group
// has few rows, for which a team would mostly wait.

#include "grouped.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "linear_amx.h"
#include "linear_vector.h"
#include "number.h"
#include "stage.h"
#include "vector.h"

namespace orca {
namespace {

constexpr int64_t PIECES_PER_THREAD = 8;  // at least, where there are enough columns: groups differ in their rows

// The rows of x that a group reads, adjacent in memory of this thread if they are scattered.
Rows rows_of_group(const OrcaGroups& groups, const Rows& x, Range range, int64_t width) {
    const int64_t size = x.format == BF16 ? sizeof(bf16) : sizeof(float);
    char* data = static_cast<char*>(x.data);
    const int64_t m = range.end - range.begin;
    if (groups.rows == nullptr) return {data + range.begin * x.stride * size, m, x.stride, x.format};
    const int64_t* rows = groups.rows + range.begin;
    if (m == 1) return {data + rows[0] * x.stride * size, 1, x.stride, x.format};
    static thread_local Scratch memory;
    char* to = memory.get<char>(m * width * size);
    for (int64_t row = 0; row < m; row++) {
        std::memcpy(to + row * width * size, data + rows[row] * x.stride * size, width * size);
    }
    return {to, m, width, x.format};
}

template <class Dot> void columns_by_vectors(const Linear& linear, const Rows& x, const Rows& y, Range columns) {
    static thread_local LinearWork work;
    PackedRows<Dot>::reserve(linear, x.m, work);
    PackedRows<Dot> packed(linear, x, work);
    packed.pack();
    PanelProducts<Dot> products(linear, packed, {0, packed.blocks()});
    for (int64_t panel = columns.begin; panel < columns.end; panel++) {
        const int64_t next = panel + 1 < columns.end ? panel + 1 : -1;
        products.times(panel, next, [&](Range rows, const float* sums) {
            for (int64_t row = rows.begin; row < rows.end; row++, sums += PANEL) store_row(linear, y, row, panel, sums);
            return true;
        });
    }
}

// A range of panels of a linear layer, by one thread.
void columns_of_linear(const Linear& linear, const Rows& x, const Rows& y, Range columns) {
#ifdef __AMX_BF16__
    if (!by_vectors(linear)) {
        if (linear.format == INT8) return rows_by_tiles<INT8>(linear, x, y, {0, x.m}, columns);
        if (linear.format == COMPACT_BF16) return rows_by_tiles<COMPACT_BF16>(linear, x, y, {0, x.m}, columns);
        return rows_by_tiles<BF16>(linear, x, y, {0, x.m}, columns);
    }
#endif
    with_dot(linear.format, [&](auto dot) { columns_by_vectors<decltype(dot)>(linear, x, y, columns); });
}

void grouped_linear(const OrcaGroups& groups, const Rows& x, const Rows& y, int64_t splits, int64_t piece) {
    const int64_t group = piece / splits;
    const Linear& linear = *groups.linears[group];
    const Range rows{groups.offsets[group], groups.offsets[group + 1]};
    const Range columns = share(panels(linear.n), piece % splits, splits);
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    const Rows part{place_of(y, rows.begin, 0), rows.end - rows.begin, y.stride, y.format};
    columns_of_linear(linear, rows_of_group(groups, x, rows, linear.k), part, columns);
}

template <class T> void combine(const Rows& x, const OrcaTerms& terms, const Rows& y, int64_t row, Range columns) {
    const int64_t* places = terms.places + row * terms.count;
    const float* weights = terms.weights + row * terms.count;
    const T* from = static_cast<const T*>(x.data);
    T* to = static_cast<T*>(y.data) + row * y.stride;
    for (int64_t column = columns.begin; column < columns.end; column += kLanes) {
        const int64_t lanes = std::min<int64_t>(columns.end - column, kLanes);
        f32x16 sum{};
        for (int64_t term = 0; term < terms.count; term++) {
            if (places[term] < 0) continue;
            sum += take_numbers(from + places[term] * x.stride + column, lanes) * weights[term];
        }
        put_numbers(to + column, sum, lanes);
    }
}

}  // namespace

void grouped_linear_team(const OrcaGroups& groups, const Rows& x, const Rows& y, Team& team, int thread) {
    const int64_t wanted = (PIECES_PER_THREAD * team.size() + groups.num_groups - 1) / groups.num_groups;
    const int64_t splits = std::min(wanted, panels(groups.linears[0]->n));
    for (Stage stage = Stage::queue(team, thread, groups.num_groups * splits); stage.take();) {
        grouped_linear(groups, x, y, splits, stage.piece());
    }
}

void combine_team(const Rows& x, const OrcaTerms& terms, const Rows& y, int64_t width, int thread, int threads) {
    const auto [rows, columns] = block_of(y.m, width, thread, threads);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        if (y.format == BF16) {
            combine<bf16>(x, terms, y, row, columns);
        } else {
            combine<float>(x, terms, y, row, columns);
        }
    }
}

}  // namespace orca

extern "C" void orca_grouped_linear(const OrcaGroups* groups, const orca::Rows* x, const orca::Rows* y, int threads) {
    if (groups->num_groups == 0) return;
    orca::run_team(
        threads, [&](orca::Team& team, int thread) { orca::grouped_linear_team(*groups, *x, *y, team, thread); });
}

extern "C" void orca_combine(
    const orca::Rows* x, const OrcaTerms* terms, const orca::Rows* y, int64_t width, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::combine_team(*x, *terms, *y, width, omp_get_thread_num(), omp_get_num_threads());
}
