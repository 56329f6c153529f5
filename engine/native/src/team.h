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
