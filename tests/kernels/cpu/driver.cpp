// Calls the kernel on memory that ends where a page without rights begins: one number too far is a fault, also where no
// sanitizer looks (tile loads). Built with and run under sanitizers by test_sanitizers.py.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kernel.h"

// Of `bytes`, the last of which is the last before a page without rights.
struct Edge {
    char* start;
    char* data;
    size_t whole;
    explicit Edge(size_t bytes) {
        const size_t page = sysconf(_SC_PAGESIZE);
        whole = (bytes + page - 1) / page * page + page;
        start = static_cast<char*>(mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (start == MAP_FAILED || mprotect(start + whole - page, page, PROT_NONE)) std::abort();
        data = start + whole - page - bytes;
    }
    ~Edge() { munmap(start, whole); }
    Edge(const Edge&) = delete;
};

static void team(void (*body)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(body, data);
    body(data);
    for (auto& other : others) other.join();
}

static void fill(char* data, int64_t count, int type) {
    for (int64_t i = 0; i < count; ++i) {
        const float value = float(std::rand() % 1000 - 500) / 500;
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        const uint16_t half = uint16_t(bits >> 16);
        if (type == INT8) data[i] = char(std::rand() % 255 - 127);
        else if (type == FLOAT32) std::memcpy(data + i * 4, &value, 4);
        else std::memcpy(data + i * 2, &half, 2);
    }
}

static int run(int64_t rows, int64_t experts, int64_t per_row, int64_t hidden, int64_t width, int type, int threads) {
    const int64_t size = type == FLOAT32 ? 4 : type == BFLOAT16 ? 2 : 1;
    const int active = type == INT8 ? FLOAT32 : type;
    const int64_t wide_blocks = (hidden + 127) / 128, narrow_blocks = (width + 127) / 128;
    Edge x(rows * hidden * 4), out(rows * hidden * 4), gate(experts * width * hidden * size);
    Edge up(experts * width * hidden * size), down(experts * hidden * width * size);
    Edge expert(rows * per_row * 8), share(rows * per_row * 4), wide(rows * width * 4);
    Edge scales(experts * width * wide_blocks * 4), down_scales(experts * hidden * narrow_blocks * 4);
    fill(x.data + rows * hidden * (active == FLOAT32 ? 0 : 2), rows * hidden, active);
    fill(scales.data, experts * width * wide_blocks, FLOAT32);
    fill(down_scales.data, experts * hidden * narrow_blocks, FLOAT32);
    fill(gate.data, experts * width * hidden, type);
    fill(up.data, experts * width * hidden, type);
    fill(down.data, experts * hidden * width, type);
    fill(share.data, rows * per_row, FLOAT32);
    for (int64_t i = 0; i < rows * per_row; ++i) {
        const int64_t own = std::rand() % experts;
        std::memcpy(expert.data + i * 8, &own, 8);
    }
    // What lies at the end of a page in whole numbers of 4 or 8 bytes is aligned.
    const int64_t active_size = active == FLOAT32 ? 4 : 2;
    char *first = x.data + rows * hidden * (4 - active_size), *last = out.data + rows * hidden * (4 - active_size);
    const Rows in{first, rows, hidden, hidden, active}, to{last, rows, hidden, hidden, active};
    const Rows floats{wide.data, rows, width, width, FLOAT32};
    auto stack = [&](Edge& data, Edge& by, int64_t outputs, int64_t inputs, int64_t blocks) {
        const float* numbers = type == INT8 ? reinterpret_cast<const float*>(by.data) : nullptr;
        return Stack{data.data, experts, outputs, inputs, inputs, outputs * inputs, numbers, blocks, outputs * blocks};
    };
    const Stack gates = stack(gate, scales, width, hidden, wide_blocks);
    const Stack ups = stack(up, scales, width, hidden, wide_blocks);
    const Stack downs = stack(down, down_scales, hidden, width, narrow_blocks);
    auto* ids = reinterpret_cast<int64_t*>(expert.data);
    auto* shares = reinterpret_cast<float*>(share.data);
    int bad = redraft_experts(&in, ids, shares, per_row, &gates, &ups, &downs, type, &to, threads);
    bad |= redraft_experts(&in, nullptr, nullptr, 1, &gates, &ups, &downs, type, &to, threads);
    bad |= redraft_linear(&in, &gates, type, &floats, threads);
    if (rows) {
        ids[rows * per_row - 1] = experts;
        bad |= redraft_experts(&in, ids, shares, per_row, &gates, &ups, &downs, type, &to, threads) != BAD_EXPERT;
    }
    return bad;
}

int main() {
    if (!redraft_start(reinterpret_cast<void*>(team))) return 77;
    const int64_t sizes[][5] = {
        {0, 3, 2, 16, 8}, {1, 1, 1, 1, 1},     {3, 2, 1, 7, 5},       {17, 5, 2, 33, 31},
        {32, 8, 4, 64, 32}, {130, 2, 1, 40, 129}, {140, 1, 1, 130, 144}, {33, 3, 3, 257, 48},
    };
    int failed = 0;
    for (auto& s : sizes)
        for (int type : {FLOAT32, BFLOAT16, INT8})
            for (int threads : {1, 3})
                if (run(s[0], s[1], s[2], s[3], s[4], type, threads)) {
                    std::printf("failed: %ld rows, type %d\n", long(s[0]), type);
                    failed = 1;
                }
    if (!failed) std::puts("all done");
    return failed;
}
