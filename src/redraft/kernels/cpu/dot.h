// Products by vectors along the inputs: out[m][n] = sum over k of x[m][k] * w[n][k], weights as they lie in the model.
// The sums of an output run over k in one order, whatever the tile it is computed in: a row never feels its neighbours.
#pragma once
#include <immintrin.h>

#include "matrix.h"
#include "rows.h"

namespace redraft {

#if defined(__AVX512F__)
using Vector = __m512;
constexpr int LANES = 16, TILE_N = 4, TILE_M = 6;  // 24 sums, 4 weights and a row in 32 registers
static inline Vector zero() { return _mm512_setzero_ps(); }
static inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
static inline Vector load(const bf16* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline Vector multiply_add(Vector w, Vector x, Vector sum) { return _mm512_fmadd_ps(w, x, sum); }
static inline float total(Vector v) { return _mm512_reduce_add_ps(v); }
#else
using Vector = __m256;
constexpr int LANES = 8, TILE_N = 2, TILE_M = 6;  // 12 sums, 2 weights and a row in 16 registers
static inline Vector zero() { return _mm256_setzero_ps(); }
static inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
static inline Vector load(const bf16* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline Vector multiply_add(Vector w, Vector x, Vector sum) { return _mm256_fmadd_ps(w, x, sum); }
static inline float total(Vector v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#endif

// Weights of type W against float32 rows; bfloat16 weights are widened in registers.
template <class W>
struct Widened {
    using Weight = W;
    using Active = float;
    static constexpr int STEP = LANES;
    using Loaded = Vector;
    static Loaded weights(const W* p) { return load(p); }
    static Loaded actives(const float* p) { return load(p); }
    static Vector step(Loaded w, Loaded x, Vector sum) { return multiply_add(w, x, sum); }
};

#if defined(__AVX512BF16__)
// Pairs of bfloat16 products, added in float32.
struct Pairs {
    using Weight = bf16;
    using Active = bf16;
    static constexpr int STEP = 32;
    using Loaded = __m512bh;
    static Loaded weights(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static Loaded actives(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static Vector step(Loaded w, Loaded x, Vector sum) { return _mm512_dpbf16_ps(sum, w, x); }
};
#endif

template <class Kind>
struct Dot {
    using Weight = typename Kind::Weight;
    using Active = typename Kind::Active;
    struct Session {};  // nothing to set up in a thread

    static int64_t padded(int64_t inputs) { return (inputs + Kind::STEP - 1) / Kind::STEP * Kind::STEP; }
    static int64_t bytes(int64_t rows, int64_t inputs) { return rows * padded(inputs) * sizeof(Active); }

    // Rows as `product` reads them: one after the other, zeros up to a whole number of steps.
    template <class From>
    static void prepare(const From* const* from, int64_t rows, int64_t inputs, char* to) {
        Active* x = reinterpret_cast<Active*>(to);
        for (int64_t m = 0; m < rows; ++m, x += padded(inputs)) {
            convert(x, from[m], inputs);
            std::memset(x + inputs, 0, (padded(inputs) - inputs) * sizeof(Active));
        }
    }

    static void product(const char* rows, int64_t count, const Matrix& w, float* out, int64_t out_row, Session&) {
        int64_t n = 0;
        for (; n + TILE_N <= w.outputs; n += TILE_N) columns<TILE_N>(rows, count, w, n, out, out_row);
        for (; n < w.outputs; ++n) columns<1>(rows, count, w, n, out, out_row);
    }

   private:
    template <int N>
    static void columns(const char* rows, int64_t count, const Matrix& w, int64_t n, float* out, int64_t out_row) {
        const Active* x = reinterpret_cast<const Active*>(rows);
        for (int64_t m = 0; m < count; m += TILE_M)
            some<N>(x + m * padded(w.inputs), count - m, w, n, out + m * out_row + n, out_row, m == 0);
    }

    template <int N, int M = TILE_M>
    static void some(
        const Active* x, int64_t left, const Matrix& w, int64_t n, float* out, int64_t out_row, bool ahead
    ) {
        if (left < M) {
            if constexpr (M > 1) some<N, M - 1>(x, left, w, n, out, out_row, ahead);
        } else if (ahead) {
            tile<N, M, true>(x, w, n, out, out_row);
        } else {
            tile<N, M, false>(x, w, n, out, out_row);
        }
    }

    // ahead: fetches the weights of the next tile, line after line, while this one is computed.
    template <int N, int M, bool ahead>
    static void tile(const Active* x, const Matrix& w, int64_t n, float* out, int64_t out_row) {
        const int64_t row = padded(w.inputs), whole = w.inputs / Kind::STEP * Kind::STEP, rest = w.inputs - whole;
        const Weight* weight[N];
        for (int i = 0; i < N; ++i) weight[i] = w.at<Weight>(n + i);
        const char* next = reinterpret_cast<const char*>(w.at<Weight>(n)) + N * w.row * sizeof(Weight);
        Vector sum[N][M];
        for (int i = 0; i < N; ++i)
            for (int m = 0; m < M; ++m) sum[i][m] = zero();
        auto step = [&](const Weight* const* from, int64_t at, int64_t k) __attribute__((always_inline)) {
            typename Kind::Loaded loaded[N];
            for (int i = 0; i < N; ++i) loaded[i] = Kind::weights(from[i] + at);
            for (int m = 0; m < M; ++m) {
                auto active = Kind::actives(x + m * row + k);
                for (int i = 0; i < N; ++i) sum[i][m] = Kind::step(loaded[i], active, sum[i][m]);
            }
        };
        for (int64_t k = 0; k < whole; k += Kind::STEP) {
            if constexpr (ahead) {
                constexpr int bytes = N * Kind::STEP * sizeof(Weight);
                for (int line = 0; line < bytes; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
                next += bytes;
            }
            step(weight, k, k);
        }
        if (rest) {
            alignas(64) Weight ends[N][Kind::STEP] = {};
            const Weight* last[N];
            for (int i = 0; i < N; ++i) {
                std::memcpy(ends[i], weight[i] + whole, rest * sizeof(Weight));
                last[i] = ends[i];
            }
            step(last, 0, whole);
        }
        for (int m = 0; m < M; ++m)
            for (int i = 0; i < N; ++i) out[m * out_row + i] = total(sum[i][m]);
    }
};

}  // namespace redraft
