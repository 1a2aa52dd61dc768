// Weights as they lie in memory: outputs rows of inputs numbers each.
#pragma once
#include <cstdint>

namespace redraft {

struct Matrix {
    const void* data;
    int64_t outputs, inputs;
    int64_t row;  // numbers from one row to the next

    template <class T>
    const T* at(int64_t output) const {
        return static_cast<const T*>(data) + output * row;
    }
    template <class T>
    Matrix part(int64_t from, int64_t count) const {
        return {at<T>(from), count, inputs, row};
    }
};

}  // namespace redraft
