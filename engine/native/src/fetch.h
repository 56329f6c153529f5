// Prefetching from memory.

#pragma once

#include <cstdint>

namespace orca {

// Memory to prefetch into the second-level cache meanwhile: `lines` of 64 bytes per step, until the end.
struct Fetch {
    static constexpr bool ALONE = false;

    const char* at;
    const char* end;
    int64_t lines;

    void step() {
        for (int64_t line = 0; line < lines && at < end; line++, at += 64) __builtin_prefetch(at, 0, 2);
    }
};

}  // namespace orca
