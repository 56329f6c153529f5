#include "shared_expert.h"

#include <algorithm>
#include <cmath>

#include "elementwise.h"
#include "mlp.h"
#include "number.h"
#include "stage.h"
#include "vector.h"

namespace orca {
namespace {

Rows rows_in(Scratch& memory, const Rows& x, int64_t width) { return {memory.get<char>(0), x.m, width, x.format}; }

template <class T> float rounded(float value) {
    T kept;
    store(&kept, value);
    return load(&kept);
}

// Rounded after each operation, as the modules do.
template <class T> void add_row(const T* x, const T* weight, T* y, int64_t width) {
    const float factor = weight == nullptr ? 1.0f : rounded<T>(1.0f / (1.0f + std::exp(-load(weight))));
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t count = std::min<int64_t>(width - i, kLanes);
        T products[kLanes];
        put_numbers(products, take_numbers(x + i, count) * factor, count);
        put_numbers(y + i, take_numbers(y + i, count) + take_numbers(products, count), count);
    }
}

template <class T> void add_rows(const OrcaSharedExpert& expert, SharedExpertWork& work, const Rows& y, const Block& block) {
    const int64_t width = expert.down->n, first = block.columns.begin, count = block.columns.end - first;
    for (int64_t row = block.rows.begin; row < block.rows.end && count > 0; row++) {
        const T* weight = expert.weight == nullptr ? nullptr : work.weights.get<T>(0) + row;
        add_row(work.rows.get<T>(0) + row * width + first, weight, static_cast<T*>(y.data) + row * y.stride + first, count);
    }
}

}  // namespace

void SharedExpertWork::reserve(const OrcaSharedExpert& expert, int64_t m, int32_t format) {
    if (expert.gate_up == nullptr) return;
    outer.reserve(*expert.gate_up, m);
    inner.reserve(*expert.down, m);
    if (expert.weight != nullptr) outer.reserve(*expert.weight, m);
    gate_up.get<char>(m * expert.gate_up->n * bytes_of(format));
    gated.get<char>(m * expert.down->k * bytes_of(format));
    rows.get<char>(m * expert.down->n * bytes_of(format));
    weights.get<char>(m * bytes_of(format));
}

void shared_expert_team(const OrcaSharedExpert& expert, const Rows& x, SharedExpertWork& work, Team& team, int thread) {
    if (expert.gate_up == nullptr) return;
    if (expert.weight != nullptr) linear_team(*expert.weight, x, rows_in(work.weights, x, 1), work.outer, team, thread);
    const Mlp mlp{expert.gate_up, expert.down, expert.activation};
    const Rows y = rows_in(work.rows, x, expert.down->n);
    if (mlp.fits(x.m)) return mlp_team(mlp, x, y, work.outer, work.inner, team, thread);
    const int64_t width = expert.down->k;
    const Rows gate = rows_in(work.gate_up, x, 2 * width), gated = rows_in(work.gated, x, width);
    const Rows up{static_cast<char*>(gate.data) + width * bytes_of(x.format), x.m, gate.stride, x.format};
    linear_team(*expert.gate_up, x, gate, work.outer, team, thread);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        gated_team(gate, up, gated, width, expert.activation, static_cast<int>(stage.piece()), team.size());
    }
    linear_team(*expert.down, gated, y, work.inner, team, thread);
}

void add_shared_expert(const OrcaSharedExpert& expert, SharedExpertWork& work, const Rows& y, int thread, int threads) {
    if (expert.gate_up == nullptr) return;
    const Block block = block_of(y.m, expert.down->n, thread, threads);
    if (y.format == BF16) {
        add_rows<bf16>(expert, work, y, block);
    } else {
        add_rows<float>(expert, work, y, block);
    }
}

}  // namespace orca
