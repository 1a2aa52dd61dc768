// Weights as they lie in memory: outputs rows of inputs numbers each.
#pragma once
#include <cstdint>

namespace redraft {

struct Matrix {
    const void* data;
    int64_t outputs, inputs;
    int64_t row;  // numbers from one row to the next
    const float* scales;  // of 8-bit weights: a number for each block of inputs of each output; else null
    int64_t scale_row;

    template <class T>
    const T* at(int64_t output) const {
        return static_cast<const T*>(data) + output * row;
    }
    template <class T>
    Matrix part(int64_t from, int64_t count) const {
        return {at<T>(from), count, inputs, row, scales ? scale(from) : nullptr, scale_row};
    }
    const float* scale(int64_t output) const { return scales + output * scale_row; }
};

}  // namespace redraft
