// Products by AMX tiles. The weights are the left side as they lie in the model, 16 outputs by 32 inputs a tile; rows
// are brought into the right side's order, pairs of inputs of 16 rows each. A tile's sums are those of each row alone.
#pragma once
#if defined(__AMX_BF16__)
#include <immintrin.h>

#include "matrix.h"
#include "rows.h"

namespace redraft {

static inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd);
        r[12 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd);
    }
}

// The 32 numbers at `at`, or as many as there are, as bfloat16.
static inline __m512i narrowed(const bf16* from, int64_t count) {
    return _mm512_maskz_loadu_epi16(count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1, from);
}
static inline __m512i narrowed(const float* from, int64_t count) {
    auto mask = [](int64_t n) { return n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1 << n) - 1); };
    __m512 low = _mm512_maskz_loadu_ps(mask(count), from), high = _mm512_maskz_loadu_ps(mask(count - 16), from + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// The compiler doesn't know what tile instructions read: all that was written before must lie in memory.
static inline void memory_barrier() { __asm__ volatile("" ::: "memory"); }

// A thread's tile registers: 0 to 3 sums, 4 and 5 weights, 6 and 7 rows. What was configured before comes back at the
// end, so that other libraries find the tiles as they left them.
class Tiles {
   public:
    Tiles() {
        _tile_storeconfig(&before_);
        memory_barrier();
    }
    ~Tiles() {
        memory_barrier();
        if (before_.palette)
            _tile_loadconfig(&before_);
        else
            _tile_release();
    }
    Tiles(const Tiles&) = delete;

    // Outputs of the upper and the lower weight tile, 16 at most each.
    void outputs(int upper, int lower) {
        if (config_.palette && config_.rows[4] == upper && config_.rows[5] == lower) return;
        config_.palette = 1;
        for (int tile = 0; tile < 8; ++tile) {
            config_.columns[tile] = 64;
            config_.rows[tile] = uint8_t(tile >= 6 ? 16 : tile == 4 || tile < 2 ? upper : lower ? lower : 16);
        }
        config_.rows[5] = uint8_t(lower ? lower : 16);
        memory_barrier();
        _tile_loadconfig(&config_);
        memory_barrier();
        config_.rows[5] = uint8_t(lower);  // what was asked for, to compare with
    }

   private:
    struct alignas(64) Config {
        uint8_t palette = 0, start = 0, reserved[14] = {};
        uint16_t columns[16] = {};
        uint8_t rows[16] = {};
    } before_, config_;
};

// 16 outputs of 16 rows as the sums have them, to where the rows lie; only so many of each.
static inline void put(const float (*sums)[16], int64_t outputs, int64_t rows, float* out, int64_t out_row) {
    __m512i part[16];
    for (int i = 0; i < 16; ++i) part[i] = _mm512_load_si512(sums[i]);
    transpose(part);
    const __mmask16 mask = __mmask16((1u << outputs) - 1);
    for (int i = 0; i < 16; ++i)
        if (i < rows) _mm512_mask_storeu_epi32(out + i * out_row, mask, part[i]);
}

struct Amx {
    using Weight = bf16;
    using Session = Tiles;

    static int64_t steps(int64_t inputs) { return (inputs + 31) / 32; }
    static int64_t bytes(int64_t rows, int64_t inputs) { return (rows + 15) / 16 * steps(inputs) * 1024; }

    template <class From>
    static void prepare(const From* const* from, int64_t rows, int64_t inputs, char* to) {
        for (int64_t m = 0; m < rows; m += 16)
            for (int64_t k = 0; k < inputs; k += 32, to += 1024) {
                __m512i part[16];
                for (int i = 0; i < 16; ++i)
                    part[i] = m + i < rows ? narrowed(from[m + i] + k, inputs - k) : _mm512_setzero_si512();
                transpose(part);
                for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, part[i]);
            }
    }

    static void product(const char* rows, int64_t count, const Matrix& w, float* out, int64_t out_row, Tiles& tiles) {
        for (int64_t n = 0; n < w.outputs; n += 32) {
            const int64_t left = w.outputs - n;
            const int upper = int(left < 16 ? left : 16), lower = int(left < 16 ? 0 : left < 32 ? left - 16 : 16);
            tiles.outputs(upper, lower);
            const Matrix part = w.part<bf16>(n, upper + lower);
            for (int64_t m = 0; m < count; m += 32) {
                const char* x = rows + m / 16 * steps(w.inputs) * 1024;
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
    // Up to 32 outputs of up to 32 rows. ahead: fetches the next 32 outputs' weights, line after line, meanwhile.
    template <bool lower, bool pair>
    static void group(
        const char* x, int64_t count, const Matrix& w, int upper, float* out, int64_t out_row, bool ahead
    ) {
        const int64_t all = steps(w.inputs), whole = w.inputs / 32, stride = w.row * 2;
        const bf16* weight = w.at<bf16>(0);
        const char* next = reinterpret_cast<const char*>(w.at<bf16>(w.outputs));
        const int64_t lines = ahead ? w.outputs : 0;
        auto multiply = [&](const bf16* from, int64_t row_bytes, const char* rows) __attribute__((always_inline)) {
            _tile_loadd(6, rows, 64);
            _tile_loadd(4, from, row_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (pair) {
                _tile_loadd(7, rows + all * 1024, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (lower) {
                _tile_loadd(5, reinterpret_cast<const char*>(from) + 16 * row_bytes, row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (pair) _tile_dpbf16ps(3, 5, 7);
            }
        };
        memory_barrier();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < whole; ++k) {
            for (int64_t line = 0; line < lines; ++line) _mm_prefetch(next + line * 64, _MM_HINT_T1);
            next += lines * 64;
            multiply(weight + k * 32, stride, x + k * 1024);
        }
        if (whole < all) {
            alignas(64) bf16 ends[32][32] = {};
            for (int64_t n = 0; n < w.outputs; ++n)
                std::memcpy(ends[n], w.at<bf16>(n) + whole * 32, (w.inputs - whole * 32) * 2);
            memory_barrier();
            multiply(ends[0], 64, x + whole * 1024);
        }
        alignas(64) float sums[16][16];
        _tile_stored(0, sums, 64);
        put(sums, upper, count, out, out_row);
        if constexpr (pair) {
            _tile_stored(1, sums, 64);
            put(sums, upper, count - 16, out + 16 * out_row, out_row);
        }
        if constexpr (lower) {
            _tile_stored(2, sums, 64);
            put(sums, w.outputs - 16, count, out + 16, out_row);
            if constexpr (pair) {
                _tile_stored(3, sums, 64);
                put(sums, w.outputs - 16, count - 16, out + 16 * out_row + 16, out_row);
            }
        }
    }
};

}  // namespace redraft
#endif
