// Products of 8-bit weights and activations. Each block of BLOCK inputs has a scale for every output, and for every
// row: a block's products are added up in 32-bit integers, exactly, and blocks in float32, one after the other.
#pragma once
#include <immintrin.h>

#include "dot.h"
#include "matrix.h"
#include "rows.h"

namespace redraft {

constexpr int64_t BLOCK = 128;

static inline int64_t blocks_of(int64_t inputs) { return (inputs + BLOCK - 1) / BLOCK; }

// Up to BLOCK numbers as integers from -127 to 127, zeros behind them; what one of these is worth. A block with a
// number that isn't finite is worth not-a-number.
template <class From>
static inline float quantise(const From* from, int64_t count, int8_t* to) {
    typedef int8_t i8x16 __attribute__((vector_size(16)));
    alignas(64) float x[BLOCK] = {};
    convert(x, from, count < BLOCK ? count : BLOCK);
    f32x16 part[BLOCK / 16], most{}, zeros{};
    for (int i = 0; i < BLOCK / 16; ++i) {
        std::memcpy(&part[i], x + i * 16, 64);
        const f32x16 size = part[i] < 0.0f ? -part[i] : part[i];
        most = size > most ? size : most;
        zeros += part[i] * 0.0f;
    }
    float largest = 0.0f, finite = 0.0f;
    for (int i = 0; i < 16; ++i) {
        largest = most[i] > largest ? most[i] : largest;
        finite += zeros[i];
    }
    const bool some = largest > 1e-30f && finite == 0.0f;
    const float by = some ? 127.0f / largest : 0.0f;
    for (int i = 0; i < BLOCK / 16; ++i) {
        const f32x16 whole = (part[i] * by + 12582912.0f) - 12582912.0f;  // to the nearest, ties to even
        const i8x16 narrow = __builtin_convertvector(__builtin_convertvector(whole, i32x16), i8x16);
        std::memcpy(to + i * 16, &narrow, 16);
    }
    return some ? largest / 127.0f : finite;
}

#if defined(__AVX512F__)
using Integers = __m512i;
constexpr int TILE_M8 = 4;
static inline Vector floats(Integers v) { return _mm512_cvtepi32_ps(v); }
static inline Vector all(float value) { return _mm512_set1_ps(value); }
#else
using Integers = __m256i;
constexpr int TILE_M8 = 2;
static inline Vector floats(Integers v) { return _mm256_cvtepi32_ps(v); }
static inline Vector all(float value) { return _mm256_set1_ps(value); }
#endif

// step: adds the products of BYTES weights and as many numbers of a row to the sums of 4-byte lanes.
#if defined(__AVX512VNNI__)
struct Bytes {  // unsigned times signed: weights have 128 added, and the sums start at -128 times the row's
    static constexpr int BYTES = 64;
    using Loaded = __m512i;
    static constexpr int64_t OFFSETS = 64;  // bytes a block
    static Loaded weights(const int8_t* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
    static Loaded actives(const int8_t* p) { return _mm512_loadu_si512(p); }
    static Integers start(const char* offsets) { return _mm512_loadu_si512(offsets); }
    static Integers step(Loaded w, Loaded x, Integers sum) { return _mm512_dpbusd_epi32(sum, w, x); }
    static void offsets(const int8_t* x, char* to) {
        Integers sum = _mm512_setzero_si512();
        for (int64_t k = 0; k < BLOCK; k += BYTES)
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), actives(x + k));
        _mm512_storeu_si512(to, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
};
#elif defined(__AVX512F__)
struct Bytes {
    static constexpr int BYTES = 32;
    using Loaded = __m512i;
    static constexpr int64_t OFFSETS = 0;
    static Loaded weights(const int8_t* p) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static Loaded actives(const int8_t* p) { return weights(p); }
    static Integers start(const char*) { return _mm512_setzero_si512(); }
    static Integers step(Loaded w, Loaded x, Integers sum) { return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x)); }
    static void offsets(const int8_t*, char*) {}
};
#else
struct Bytes {
    static constexpr int BYTES = 16;
    using Loaded = __m256i;
    static constexpr int64_t OFFSETS = 0;
    static Loaded weights(const int8_t* p) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static Loaded actives(const int8_t* p) { return weights(p); }
    static Integers start(const char*) { return _mm256_setzero_si256(); }
    static Integers step(Loaded w, Loaded x, Integers sum) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)); }
    static void offsets(const int8_t*, char*) {}
};
#endif

struct Dot8 {
    using Weight = int8_t;
    struct Session {};

    // A prepared row: its integers, the sums' starts of each block, the blocks' scales.
    static int64_t row_bytes(int64_t inputs) {
        return blocks_of(inputs) * (BLOCK + Bytes::OFFSETS) + (blocks_of(inputs) * 4 + 63) / 64 * 64;
    }
    static int64_t bytes(int64_t rows, int64_t inputs) { return rows * row_bytes(inputs); }

    template <class From>
    static void prepare(const From* const* from, int64_t rows, int64_t inputs, char* to) {
        const int64_t count = blocks_of(inputs);
        for (int64_t m = 0; m < rows; ++m, to += row_bytes(inputs)) {
            int8_t* x = reinterpret_cast<int8_t*>(to);
            float* scales = reinterpret_cast<float*>(to + count * (BLOCK + Bytes::OFFSETS));
            for (int64_t b = 0; b < count; ++b) {
                scales[b] = quantise(from[m] + b * BLOCK, inputs - b * BLOCK, x + b * BLOCK);
                Bytes::offsets(x + b * BLOCK, to + count * BLOCK + b * Bytes::OFFSETS);
            }
        }
    }

    static void product(const char* rows, int64_t count, const Matrix& w, float* out, int64_t out_row, Session&) {
        int64_t n = 0;
        for (; n + 2 <= w.outputs; n += 2) columns<2>(rows, count, w, n, out, out_row);
        for (; n < w.outputs; ++n) columns<1>(rows, count, w, n, out, out_row);
    }

   private:
    template <int N>
    static void columns(const char* rows, int64_t count, const Matrix& w, int64_t n, float* out, int64_t out_row) {
        const int64_t row = row_bytes(w.inputs);
        for (int64_t m = 0; m < count; m += TILE_M8)
            some<N, TILE_M8>(rows + m * row, count - m, w, n, out + m * out_row + n, out_row, m == 0);
    }

    template <int N, int M>
    static void some(const char* x, int64_t left, const Matrix& w, int64_t n, float* out, int64_t out_row, bool ahead) {
        if (left >= M) return tile<N, M>(x, w, n, out, out_row, ahead);
        if constexpr (M > 1) some<N, M - 1>(x, left, w, n, out, out_row, ahead);
    }

    template <int N, int M>
    static void tile(const char* x, const Matrix& w, int64_t n, float* out, int64_t out_row, bool ahead) {
        const int64_t row = row_bytes(w.inputs), count = blocks_of(w.inputs);
        const char* next = reinterpret_cast<const char*>(w.at<int8_t>(n + N));
        Vector sum[N][M];
        for (int i = 0; i < N; ++i)
            for (int m = 0; m < M; ++m) sum[i][m] = zero();
        for (int64_t b = 0; b < count; ++b) {
            alignas(64) int8_t ends[N][BLOCK];
            const int8_t* weight[N];
            const int64_t left = w.inputs - b * BLOCK;
            for (int i = 0; i < N; ++i) {
                weight[i] = w.at<int8_t>(n + i) + b * BLOCK;
                if (left >= BLOCK) continue;
                std::memset(ends[i], 0, BLOCK);
                std::memcpy(ends[i], weight[i], left);
                weight[i] = ends[i];
            }
            for (int line = 0; ahead && line < N * BLOCK; line += 64) _mm_prefetch(next + line, _MM_HINT_T0);
            next += N * BLOCK;
            Integers whole[N][M];
            for (int m = 0; m < M; ++m)
                for (int i = 0; i < N; ++i)
                    whole[i][m] = Bytes::start(x + m * row + count * BLOCK + b * Bytes::OFFSETS);
            for (int64_t k = 0; k < BLOCK; k += Bytes::BYTES) {
                typename Bytes::Loaded loaded[N];
                for (int i = 0; i < N; ++i) loaded[i] = Bytes::weights(weight[i] + k);
                for (int m = 0; m < M; ++m) {
                    auto active = Bytes::actives(reinterpret_cast<const int8_t*>(x + m * row) + b * BLOCK + k);
                    for (int i = 0; i < N; ++i) whole[i][m] = Bytes::step(loaded[i], active, whole[i][m]);
                }
            }
            for (int m = 0; m < M; ++m) {
                const float* scales = reinterpret_cast<const float*>(x + m * row + count * (BLOCK + Bytes::OFFSETS));
                for (int i = 0; i < N; ++i)
                    sum[i][m] = multiply_add(floats(whole[i][m]), all(w.scale(n + i)[b] * scales[b]), sum[i][m]);
            }
        }
        for (int m = 0; m < M; ++m)
            for (int i = 0; i < N; ++i) out[m * out_row + i] = total(sum[i][m]);
    }
};

}  // namespace redraft
