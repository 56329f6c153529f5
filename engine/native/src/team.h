// Sharing work among the threads of a team, and their scratch memory.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace orca {

struct Range {
    int64_t begin;
    int64_t end;
};

// One thread's part of `total` items.
inline Range share(int64_t total, int64_t thread, int64_t threads) {
    return {total * thread / threads, total * (thread + 1) / threads};
}

// One thread's part of rows of values.
struct Block {
    Range rows;
    Range columns;
};

// The share of one of `threads` threads of m rows of `width` values. Few rows are shared by columns, in whole cache lines.
inline Block block_of(int64_t m, int64_t width, int64_t thread, int64_t threads) {
    const bool by_columns = m < threads;
    const int64_t lines = (width + 31) / 32;
    const Range columns = by_columns ? share(lines, thread, threads) : Range{0, lines};
    const Range rows = by_columns ? Range{0, m} : share(m, thread, threads);
    return {rows, {columns.begin * 32, std::min(columns.end * 32, width)}};
}

// Memory of one thread or of a team, aligned to pages. The memory is kept from call to call, its content is not.
class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    template <class T> T* get(int64_t count) {
        const int64_t bytes = std::max<int64_t>((count * static_cast<int64_t>(sizeof(T)) + 4095) / 4096 * 4096, 4096);
        if (bytes > size_) {
            std::free(memory_);
            memory_ = std::aligned_alloc(4096, bytes);
            if (memory_ == nullptr) end_without(bytes);
            size_ = bytes;
        }
        return static_cast<T*>(memory_);
    }

  private:
    // Threads of the team wait for this one: no error can be returned.
    [[noreturn]] static void end_without(int64_t bytes) {
        std::fprintf(stderr, "orcastream: the CPU operators get no %lld bytes of memory\n", static_cast<long long>(bytes));
        std::abort();
    }

    void* memory_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace orca
