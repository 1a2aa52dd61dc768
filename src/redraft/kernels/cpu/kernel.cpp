// Mixture-of-experts and linear layers of a forward without gradients, on the weights as they lie in the model.
//
// One expert's rows at a time: gathered, through gate and up, silu(gate) * up, through down; what lies between stays in
// the processor's cache, and weights are read from memory once. Then each row's experts are added up, weighted, in the
// order of the row's own list. Compiled once for each set of instructions (build.py); called through ctypes.
#include <algorithm>
#include <cstdlib>

#include "amx.h"
#include "amx8.h"
#include "dot.h"
#include "int8.h"
#include "kernel.h"
#include "matrix.h"
#include "parallel.h"
#include "rows.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace redraft {

Team team = nullptr;

namespace {

constexpr int64_t CHUNK = 128;  // rows of an expert at a time, at most
constexpr int64_t SLICE = 128;  // outputs at a time
constexpr int64_t KEPT = 64 << 20;  // bytes of workspace that stay with a thread between calls

// One block of memory that a calling thread finds again at its next call.
class Workspace {
   public:
    ~Workspace() { std::free(start_); }

    // For one call, which takes its parts of it. False without memory.
    bool reserve(int64_t bytes) {
        used_ = 0;
        if (bytes <= size_) return true;
        std::free(start_);
        size_ = (bytes + 4095) / 4096 * 4096;
        start_ = static_cast<char*>(std::aligned_alloc(4096, size_));
        if (!start_) size_ = 0;
        return start_ != nullptr;
    }
    template <class T>
    T* take(int64_t count) {
        T* taken = reinterpret_cast<T*>(start_ + used_);
        used_ += room<T>(count);
        return taken;
    }
    template <class T>
    static int64_t room(int64_t count) {
        return (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    }
    // Gives back what is too much to keep.
    void end() {
        if (size_ <= KEPT) return;
        std::free(start_);
        start_ = nullptr;
        size_ = 0;
    }

   private:
    char* start_ = nullptr;
    int64_t size_ = 0, used_ = 0;
};

thread_local Workspace workspace;

// Some rows of one expert. pair: where their results lie among all pairs, which are sorted by expert.
struct Piece {
    int64_t expert, pair, rows;
};

template <class T>
Matrix matrix(const Stack& stack, int64_t index) {
    const float* scales = stack.scales ? stack.scales + index * stack.scale_stack : nullptr;
    const T* data = static_cast<const T*>(stack.data) + index * stack.stack;
    return {data, stack.outputs, stack.inputs, stack.row, scales, stack.scale_row};
}

// In how many parts a layer's outputs are cut so that every thread has enough to do.
int64_t parts(int64_t outputs, int64_t pieces, int threads) {
    int64_t most = (outputs + SLICE - 1) / SLICE;
    return threads == 1 ? 1 : std::clamp((4 * threads + pieces - 1) / pieces, int64_t(1), most);
}

struct Range {
    int64_t from, to;
};
Range part_of(int64_t outputs, int64_t index, int64_t count) {
    int64_t slices = (outputs + SLICE - 1) / SLICE;
    return {std::min(outputs, slices * index / count * SLICE), std::min(outputs, slices * (index + 1) / count * SLICE)};
}

template <class Kernel, class X>
void prepare(const X* x, int64_t stride, const int64_t* index, int64_t rows, int64_t inputs, char* to) {
    const X* from[CHUNK];
    for (int64_t m = 0; m < rows; ++m) from[m] = x + index[m] * stride;
    Kernel::template prepare<X>(from, rows, inputs, to);
}

template <class Kernel>
void prepare_rows(const Rows& x, const int64_t* index, int64_t rows, char* to) {
    if (x.type == FLOAT32)
        prepare<Kernel>(static_cast<const float*>(x.data), x.stride, index, rows, x.width, to);
    else
        prepare<Kernel>(static_cast<const bf16*>(x.data), x.stride, index, rows, x.width, to);
}

void put_row(const Rows& out, int64_t row, int64_t column, const float* from, int64_t count) {
    if (out.type == FLOAT32)
        std::memcpy(static_cast<float*>(out.data) + row * out.stride + column, from, count * 4);
    else
        convert(static_cast<bf16*>(out.data) + row * out.stride + column, from, count);
}

// The order of all (row, slot) pairs by expert, stable; and the pieces of it.
int sort_pairs(
    const int64_t* expert, int64_t pairs, int64_t experts, int64_t* start, int64_t* order, Piece* pieces, int64_t* count
) {
    std::fill(start, start + experts + 1, 0);
    for (int64_t pair = 0; pair < pairs; ++pair) {
        int64_t own = expert ? expert[pair] : 0;
        if (own < 0 || own >= experts) return BAD_EXPERT;
        ++start[own + 1];
    }
    *count = 0;
    for (int64_t own = 0; own < experts; ++own) {
        int64_t rows = start[own + 1];
        for (int64_t done = 0; done < rows; done += CHUNK)
            pieces[(*count)++] = {own, start[own] + done, std::min(CHUNK, rows - done)};
        start[own + 1] += start[own];
    }
    for (int64_t pair = 0; pair < pairs; ++pair) order[start[expert ? expert[pair] : 0]++] = pair;
    return DONE;
}

template <class Kernel>
int experts(
    const Rows& x, const int64_t* expert, const float* share, int64_t per_row, const Stack& gate, const Stack& up,
    const Stack& down, const Rows& out, int threads
) {
    using W = typename Kernel::Weight;
    const int64_t pairs = x.count * per_row, hidden = gate.inputs, width = gate.outputs;
    const int64_t most = gate.count + pairs / CHUNK + 1;
    const int64_t scratch = std::max(Kernel::bytes(CHUNK, hidden), Kernel::bytes(CHUNK, width)) + 2 * CHUNK * SLICE * 4;
    const bool fits = workspace.reserve(
        Workspace::room<int64_t>(gate.count + 1) + 3 * Workspace::room<int64_t>(pairs) + Workspace::room<Piece>(most)
        + Workspace::room<float>(pairs * width) + Workspace::room<float>(pairs * down.outputs)
        + threads * (Workspace::room<char>(scratch) + Workspace::room<float>(down.outputs))
    );
    if (!fits) return NO_MEMORY;
    int64_t* start = workspace.take<int64_t>(gate.count + 1);
    int64_t* order = workspace.take<int64_t>(pairs);   // pairs (row * per_row + slot), by expert
    int64_t* place = workspace.take<int64_t>(pairs);   // where each lies in that order
    int64_t* row_of = workspace.take<int64_t>(pairs);
    Piece* pieces = workspace.take<Piece>(most);
    float* inner = workspace.take<float>(pairs * width);
    float* outer = workspace.take<float>(pairs * down.outputs);
    char* spaces = workspace.take<char>(threads * Workspace::room<char>(scratch));
    float* sums = workspace.take<float>(threads * (Workspace::room<float>(down.outputs) / 4));
    int64_t count = 0;
    if (int failed = sort_pairs(expert, pairs, gate.count, start, order, pieces, &count)) return failed;
    for (int64_t i = 0; i < pairs; ++i) {
        place[order[i]] = i;
        row_of[i] = order[i] / per_row;
    }

    const int64_t first = parts(width, count, threads);
    parallel(threads, count * first, [&](int thread, auto next) {
        typename Kernel::Session session;
        char* rows = spaces + thread * Workspace::room<char>(scratch);
        float* g = reinterpret_cast<float*>(rows + std::max(Kernel::bytes(CHUNK, hidden), Kernel::bytes(CHUNK, width)));
        float* u = g + CHUNK * SLICE;
        for (int64_t item; (item = next()) >= 0;) {
            const Piece& piece = pieces[item / first];
            const Range range = part_of(width, item % first, first);
            const Matrix gates = matrix<W>(gate, piece.expert), ups = matrix<W>(up, piece.expert);
            prepare_rows<Kernel>(x, row_of + piece.pair, piece.rows, rows);
            for (int64_t n = range.from; n < range.to; n += SLICE) {
                const int64_t some = std::min(SLICE, range.to - n);
                Kernel::product(rows, piece.rows, gates.part<W>(n, some), g, SLICE, session);
                Kernel::product(rows, piece.rows, ups.part<W>(n, some), u, SLICE, session);
                for (int64_t m = 0; m < piece.rows; ++m)
                    swiglu(g + m * SLICE, u + m * SLICE, inner + (piece.pair + m) * width + n, some);
            }
        }
    });

    const int64_t second = parts(down.outputs, count, threads);
    parallel(threads, count * second, [&](int thread, auto next) {
        typename Kernel::Session session;
        char* rows = spaces + thread * Workspace::room<char>(scratch);
        for (int64_t item; (item = next()) >= 0;) {
            const Piece& piece = pieces[item / second];
            const Range range = part_of(down.outputs, item % second, second);
            const Matrix downs = matrix<W>(down, piece.expert).template part<W>(range.from, range.to - range.from);
            const float* from[CHUNK];
            for (int64_t m = 0; m < piece.rows; ++m) from[m] = inner + (piece.pair + m) * width;
            Kernel::template prepare<float>(from, piece.rows, width, rows);
            float* to = outer + piece.pair * down.outputs + range.from;
            Kernel::product(rows, piece.rows, downs, to, down.outputs, session);
        }
    });

    constexpr int64_t TOGETHER = 8;
    parallel(threads, (x.count + TOGETHER - 1) / TOGETHER, [&](int thread, auto next) {
        float* sum = sums + thread * (Workspace::room<float>(down.outputs) / 4);
        for (int64_t item; (item = next()) >= 0;)
            for (int64_t row = item * TOGETHER; row < std::min(x.count, (item + 1) * TOGETHER); ++row) {
                std::fill(sum, sum + down.outputs, 0.0f);
                for (int64_t slot = 0; slot < per_row; ++slot) {
                    const float* from = outer + place[row * per_row + slot] * down.outputs;
                    const float weight = share ? share[row * per_row + slot] : 1.0f;
                    for (int64_t c = 0; c < down.outputs; ++c) sum[c] += weight * from[c];
                }
                put_row(out, row, 0, sum, down.outputs);
            }
    });
    return DONE;
}

template <class Kernel>
int linear(const Rows& x, const Stack& weight, const Rows& out, int threads) {
    using W = typename Kernel::Weight;
    const int64_t pieces = (x.count + CHUNK - 1) / CHUNK;
    const int64_t scratch = Kernel::bytes(CHUNK, x.width) + CHUNK * SLICE * 4;
    if (!workspace.reserve(threads * Workspace::room<char>(scratch))) return NO_MEMORY;
    char* spaces = workspace.take<char>(threads * Workspace::room<char>(scratch));
    const Matrix all = matrix<W>(weight, 0);
    const int64_t cut = parts(all.outputs, pieces, threads);
    parallel(threads, pieces * cut, [&](int thread, auto next) {
        typename Kernel::Session session;
        char* rows = spaces + thread * Workspace::room<char>(scratch);
        float* results = reinterpret_cast<float*>(rows + Kernel::bytes(CHUNK, x.width));
        for (int64_t item; (item = next()) >= 0;) {
            const int64_t start = item / cut * CHUNK, some = std::min(CHUNK, x.count - start);
            const Range range = part_of(all.outputs, item % cut, cut);
            int64_t index[CHUNK];
            for (int64_t m = 0; m < some; ++m) index[m] = start + m;
            prepare_rows<Kernel>(x, index, some, rows);
            for (int64_t n = range.from; n < range.to; n += SLICE) {
                const int64_t wide = std::min(SLICE, range.to - n);
                Kernel::product(rows, some, all.part<W>(n, wide), results, SLICE, session);
                for (int64_t m = 0; m < some; ++m) put_row(out, start + m, n, results + m * SLICE, wide);
            }
        }
    });
    return DONE;
}

#if defined(__AMX_BF16__)
using Bfloat16 = Amx;
#elif defined(__AVX512BF16__)
using Bfloat16 = Dot<Pairs>;
#else
using Bfloat16 = Dot<Widened<bf16>>;
#endif
using Float32 = Dot<Widened<float>>;
#if defined(__AMX_INT8__)
using Int8 = Amx8;
#else
using Int8 = Dot8;
#endif

}  // namespace
}  // namespace redraft

extern "C" {

using namespace redraft;

int redraft_start(void* parallel) {
    team = reinterpret_cast<Team>(parallel);
#if defined(__AMX_BF16__)
    constexpr int request_permission = 0x1023, tile_data = 18;  // arch_prctl(2)
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return 1;
#endif
}

int redraft_experts(
    const Rows* x, const int64_t* expert, const float* share, int64_t per_row, const Stack* gate, const Stack* up,
    const Stack* down, int type, const Rows* out, int threads
) {
    if (!x->count) return DONE;
    auto run = type == INT8 ? experts<Int8> : type == FLOAT32 ? experts<Float32> : experts<Bfloat16>;
    const int status = run(*x, expert, share, per_row, *gate, *up, *down, *out, threads);
    workspace.end();
    return status;
}

int redraft_linear(const Rows* x, const Stack* weight, int type, const Rows* out, int threads) {
    if (!x->count) return DONE;
    auto run = type == INT8 ? linear<Int8> : type == FLOAT32 ? linear<Float32> : linear<Bfloat16>;
    const int status = run(*x, *weight, *out, threads);
    workspace.end();
    return status;
}
}
