// SPDX-License-Identifier: Apache-2.0
// Models how Hopper's tensor cores add products of FP8 numbers. 32 products and the running sum are aligned to the
// largest of their exponents. Each keeps 14 bits, and lower bits are cut off. DeepSeek-V3 found this by experiment
// (arXiv 2412.19437, sections 3.3.2 and 3.5.2); NVIDIA does not document it. With fast accumulation the sum over all of
// K is computed in this way. Otherwise the sum of every 128 products is added to an f32.
#pragma once

#include <math.h>
#include <stdint.h>

enum { FP8_SUM_BITS = 14, FP8_SUM_TERMS = 32, FP8_SUM_PROMOTED = 128 };

// Returns `sum` plus the products u[i] v[i], i < n.
static inline double fp8_accumulate(double sum, const float *u, const float *v, int64_t n)
{
    for (int64_t first = 0; first < n; first += FP8_SUM_TERMS) {
        const int64_t last = first + FP8_SUM_TERMS < n ? first + FP8_SUM_TERMS : n;
        double largest = fabs(sum), total;
        int exponent;
        for (int64_t i = first; i < last; i++)
            largest = fmax(largest, fabs((double)u[i] * (double)v[i]));
        if (largest == 0) continue;
        frexp(largest, &exponent);
        const double step = ldexp(1, exponent - FP8_SUM_BITS);
        total = trunc(sum / step);
        for (int64_t i = first; i < last; i++)
            total += trunc((double)u[i] * (double)v[i] / step);
        sum = total * step;
    }
    return sum;
}
