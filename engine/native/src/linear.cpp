// Linear layers: chooses the kernel.

#include "linear.h"

#include "linear_amx.h"
#include "linear_part.h"
#include "linear_vector.h"

namespace orca {
namespace {

template <class Dot>
void linear_by_vectors(const Linear& linear, const Rows& x, const Rows& y, LinearWork& work, Team& team, int thread) {
    PackedRows<Dot> packed(linear, x, work);
    packed.pack(team, thread);
    rows_times_panels(linear, packed, y, team, thread);
}

}  // namespace

void LinearWork::reserve(const Linear& linear, int64_t m) {
#ifdef __AMX_BF16__
    if (!by_vectors(linear)) {
        values.get<char>(TiledRows::bytes(m, depth_steps(linear)));
        return;
    }
#endif
    if (linear.format == F32) return PackedRows<FloatDot>::reserve(linear, m, *this);
    if (linear.format == INT8) return PackedRows<ByteDot>::reserve(linear, m, *this);
    PackedRows<BfloatDot>::reserve(linear, m, *this);  // the same for COMPACT_BF16
}

bool by_vectors([[maybe_unused]] const Linear& linear) {
#ifdef __AMX_BF16__
    return linear.format == F32;  // even a single row is faster by tiles: their few loads keep memory busier
#else
    return true;
#endif
}

void linear_team(const Linear& linear, const Rows& x, const Rows& y, LinearWork& work, Team& team, int thread) {
    if (x.m == 0) return;
#ifdef __AMX_BF16__
    if (!by_vectors(linear)) {
        if (linear.format == INT8) return linear_by_tiles<INT8>(linear, x, y, team, thread);
        if (linear.format == COMPACT_BF16) return linear_by_tiles<COMPACT_BF16>(linear, x, y, team, thread);
        return linear_by_tiles<BF16>(linear, x, y, team, thread);
    }
#endif
    with_dot(linear.format, [&](auto dot) { linear_by_vectors<decltype(dot)>(linear, x, y, work, team, thread); });
}

}  // namespace orca

extern "C" void orca_linear(const orca::Linear* linear, const orca::Rows* x, const orca::Rows* y, int threads) {
    thread_local orca::LinearWork shared;
    orca::LinearWork& work = shared;
    work.reserve(*linear, x->m);
    orca::run_team(
        threads, [&](orca::Team& team, int thread) { orca::linear_team(*linear, *x, *y, work, team, thread); });
}
