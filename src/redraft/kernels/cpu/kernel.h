// The kernel as its callers see it: plain C.
#pragma once
#include <cstdint>

extern "C" {

enum { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };
enum { DONE = 0, BAD_EXPERT = 1, NO_MEMORY = 2 };

// `count` rows of `width` numbers of a type, `stride` numbers from one row to the next.
struct Rows {
    void* data;
    int64_t count, width, stride;
    int32_t type;
};

// `count` matrices of `outputs` rows of `inputs` numbers; `row` numbers from one row to the next, `stack` from one
// matrix to the next.
struct Stack {
    const void* data;
    int64_t count, outputs, inputs, row, stack;
    const float* scales;  // of INT8: a number for each 128 inputs of each output; else null
    int64_t scale_row, scale_stack;
};

// Once, before anything else. parallel: GOMP_parallel of the process (parallel.h), or null for one thread. Whether the
// system lets this process use the instructions.
int redraft_start(void* parallel);

// out = sum over a row's experts of share * down(silu(gate(x)) * up(x)). expert, share: [rows, per_row], dense; expert
// null: expert 0 for all; share null: 1. type: of the weights. DONE, BAD_EXPERT or NO_MEMORY.
int redraft_experts(
    const Rows* x, const int64_t* expert, const float* share, int64_t per_row, const Stack* gate, const Stack* up,
    const Stack* down, int type, const Rows* out, int threads
);

// out = x times the transposed weight. DONE or NO_MEMORY.
int redraft_linear(const Rows* x, const Stack* weight, int type, const Rows* out, int threads);
}
