// Products of 8-bit weights and activations by AMX tiles: as amx.h, with sums of whole blocks in 32-bit integers.
#pragma once
#if defined(__AMX_INT8__)
#include "amx.h"
#include "int8.h"

namespace redraft {

struct Amx8 {
    using Weight = int8_t;
    using Session = Tiles;

    // 16 rows of a block: two tiles of 64 inputs, four of them together, and the rows' scales.
    static constexpr int64_t PART = 2 * 1024 + 64;

    static int64_t bytes(int64_t rows, int64_t inputs) { return (rows + 15) / 16 * blocks_of(inputs) * PART; }

    template <class From>
    static void prepare(const From* const* from, int64_t rows, int64_t inputs, char* to) {
        for (int64_t m = 0; m < rows; m += 16)
            for (int64_t k = 0; k < inputs; k += BLOCK, to += PART) {
                alignas(64) int8_t whole[16][BLOCK] = {};
                float* scales = reinterpret_cast<float*>(to + 2 * 1024);
                for (int i = 0; i < 16; ++i)
                    scales[i] = m + i < rows ? quantise(from[m + i] + k, inputs - k, whole[i]) : 0.0f;
                for (int half = 0; half < 2; ++half) {
                    __m512i part[16];
                    for (int i = 0; i < 16; ++i) part[i] = _mm512_load_si512(whole[i] + half * 64);
                    transpose(part);
                    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + half * 1024 + i * 64, part[i]);
                }
            }
    }

    static void product(const char* rows, int64_t count, const Matrix& w, float* out, int64_t out_row, Tiles& tiles) {
        for (int64_t n = 0; n < w.outputs; n += 32) {
            const int64_t left = w.outputs - n;
            const int upper = int(left < 16 ? left : 16), lower = int(left < 16 ? 0 : left < 32 ? left - 16 : 16);
            tiles.outputs(upper, lower);
            const Matrix part = w.part<int8_t>(n, upper + lower);
            for (int64_t m = 0; m < count; m += 32) {
                const char* x = rows + m / 16 * blocks_of(w.inputs) * PART;
                float* to = out + m * out_row + n;
                const bool pair = count - m > 16;
                if (lower && pair) group<true, true>(x, count - m, part, upper, to, out_row, m == 0);
                else if (lower) group<true, false>(x, count - m, part, upper, to, out_row, m == 0);
                else if (pair) group<false, true>(x, count - m, part, upper, to, out_row, m == 0);
                else group<false, false>(x, count - m, part, upper, to, out_row, m == 0);
            }
        }
    }

   private:
    template <bool lower, bool pair>
    static void group(
        const char* x, int64_t count, const Matrix& w, int upper, float* out, int64_t out_row, bool ahead
    ) {
        const int64_t blocks = blocks_of(w.inputs);
        const char* next = reinterpret_cast<const char*>(w.at<int8_t>(w.outputs));
        alignas(64) float sums[4][16][16] = {};
        alignas(64) int32_t whole[16][16];
        auto add = [&](int tile, int outputs, int64_t first, int64_t b, const char* rows) {
            const __m512 scales = _mm512_load_ps(rows + 2 * 1024);
            for (int i = 0; i < outputs; ++i) {
                const __m512 by = _mm512_mul_ps(_mm512_set1_ps(w.scale(first + i)[b]), scales);
                const __m512 own = _mm512_cvtepi32_ps(_mm512_load_si512(whole[i]));
                _mm512_store_ps(sums[tile][i], _mm512_fmadd_ps(own, by, _mm512_load_ps(sums[tile][i])));
            }
        };
        for (int64_t b = 0; b < blocks; ++b) {
            const char* rows = x + b * PART;
            const char* others = rows + blocks * PART;
            const int64_t left = w.inputs - b * BLOCK;
            alignas(64) int8_t ends[32][BLOCK];
            const char* weight = reinterpret_cast<const char*>(w.at<int8_t>(0)) + b * BLOCK;
            int64_t stride = w.row;
            if (left < BLOCK) {
                std::memset(ends, 0, sizeof ends);
                for (int64_t n = 0; n < w.outputs; ++n) std::memcpy(ends[n], weight + n * w.row, left);
                weight = reinterpret_cast<const char*>(ends);
                stride = BLOCK;
            }
            for (int64_t line = 0; ahead && line < w.outputs * BLOCK; line += 64)
                _mm_prefetch(next + line, _MM_HINT_T1);
            next += w.outputs * BLOCK;
            memory_barrier();
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int half = 0; half < 2; ++half) {
                _tile_loadd(6, rows + half * 1024, 64);
                _tile_loadd(4, weight + half * 64, stride);
                _tile_dpbssd(0, 4, 6);
                if constexpr (pair) {
                    _tile_loadd(7, others + half * 1024, 64);
                    _tile_dpbssd(1, 4, 7);
                }
                if constexpr (lower) {
                    _tile_loadd(5, weight + 16 * stride + half * 64, stride);
                    _tile_dpbssd(2, 5, 6);
                    if constexpr (pair) _tile_dpbssd(3, 5, 7);
                }
            }
            _tile_stored(0, whole, 64);
            add(0, upper, 0, b, rows);
            if constexpr (pair) {
                _tile_stored(1, whole, 64);
                add(1, upper, 0, b, others);
            }
            if constexpr (lower) {
                _tile_stored(2, whole, 64);
                add(2, int(w.outputs) - 16, 16, b, rows);
                if constexpr (pair) {
                    _tile_stored(3, whole, 64);
                    add(3, int(w.outputs) - 16, 16, b, others);
                }
            }
        }
        put(sums[0], upper, count, out, out_row);
        if constexpr (pair) put(sums[1], upper, count - 16, out + 16 * out_row, out_row);
        if constexpr (lower) {
            put(sums[2], w.outputs - 16, count, out + 16, out_row);
            if constexpr (pair) put(sums[3], w.outputs - 16, count - 16, out + 16 * out_row + 16, out_row);
        }
    }
};

}  // namespace redraft
#endif
