// SPDX-License-Identifier: Apache-2.0
// Weights of 4 bits: a weight is (code - zero) * scale, where 128 inputs of an output share zero and scale. The
// difference has 5 bits, so it is exact in bf16, and its product with a 16-bit scale is exact in f32.
#pragma once

#include "kernels/backend.h"
#include "kernels/convert.h"

enum { INT4_WORD = 8, INT4_GROUP = QUANTISE_GROUP, INT4_MIDDLE = 8, INT4_LARGEST = 15 };

// The weights of one output and one group of inputs.
struct int4_group {
    uint8_t code[INT4_GROUP];
    int zero; // 0 .. 15
    float scale;
};

// Reads `n` weights (up to INT4_GROUP) of a row from column `first` on, the start of a group. A view in int4 is read as
// it is stored; weights of other types are quantised.
void int4_group_read(const struct matrix_view *view, int64_t row, int64_t first, int n, struct int4_group *group);

// Quantises n weights: the range from the smallest weight to the largest, with 0 in it, is cut into 15 equal steps. If
// a weight is not finite, all become NaN.
void int4_quantise(const float *x, int n, struct int4_group *group);

// Reads n codes from `column` on, all of one group, with its zero and scale. The view is in int4.
void int4_stored_read(const struct matrix_view *view, int64_t row, int64_t column, int n, struct int4_group *group);
