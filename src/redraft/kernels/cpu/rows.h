// Rows of activations: reading and writing them, and SwiGLU's gate. Everything here is element by element.
#pragma once
#include <cstdint>
#include <cstring>

namespace redraft {

using bf16 = uint16_t;
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

static inline float widen(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// To the nearest, ties to even; not-a-number stays one.
static inline bf16 narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40;
    return bf16((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline float as_float(float value) { return value; }
static inline float as_float(bf16 value) { return widen(value); }
static inline void assign(float& to, float value) { to = value; }
static inline void assign(bf16& to, float value) { to = narrow(value); }

template <class To, class From>
static inline void convert(To* to, const From* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) assign(to[i], as_float(from[i]));
}

// e^x for 16 numbers, within 2 units in the last place; 0 below -87.3, and never above e^88.3.
static inline f32x16 exponential(f32x16 x) {
    f32x16 low = x < -87.3f ? f32x16{} - 87.3f : x;
    f32x16 in = low > 88.3f ? f32x16{} + 88.3f : low;
    f32x16 shifted = in * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum is a whole number of powers of two
    f32x16 whole = shifted - 12582912.0f;
    f32x16 r = in - whole * 0.693359375f;
    r = r + whole * 2.12194440e-4f;
    f32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    i32x16 bits;
    std::memcpy(&bits, &shifted, 64);
    bits = (bits - 0x4b400000 + 127) << 23;
    f32x16 power;
    std::memcpy(&power, &bits, 64);
    f32x16 out = p * power;
    out = x < -87.3f ? f32x16{} : out;
    return x == x ? out : x;
}

// out = silu(gate) * up.
static inline void swiglu(const float* gate, const float* up, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        f32x16 g{}, u{};
        int64_t width = count - i < 16 ? count - i : 16;
        std::memcpy(&g, gate + i, width * 4);
        std::memcpy(&u, up + i, width * 4);
        f32x16 h = g / (1.0f + exponential(-g)) * u;
        std::memcpy(out + i, &h, width * 4);
    }
}

}  // namespace redraft
