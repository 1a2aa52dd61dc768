// Work shared out over the threads that the caller's OpenMP runtime has already; without one, by the caller alone.
#pragma once
#include <atomic>
#include <cstdint>

namespace redraft {

// GOMP_parallel of libgomp, which LLVM's and Intel's runtimes have too: runs the body on every thread of a team.
using Team = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
extern Team team;

// work(next): every thread calls it once, and takes items by next() until there is none (-1).
template <class Work>
void parallel(int threads, int64_t items, const Work& work) {
    struct Shared {
        const Work* work;
        int64_t items;
        std::atomic<int64_t> next{0};
        std::atomic<int> arrived{0};
    } shared{&work, items};
    auto body = [](void* data) {
        Shared& own = *static_cast<Shared*>(data);
        auto next = [&own] {
            int64_t item = own.next.fetch_add(1, std::memory_order_relaxed);
            return item < own.items ? item : -1;
        };
        (*own.work)(own.arrived.fetch_add(1, std::memory_order_relaxed), next);
    };
    if (threads > 1 && items > 1 && team)
        team(body, &shared, unsigned(threads), 0);
    else
        body(&shared);
}

}  // namespace redraft
