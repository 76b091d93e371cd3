// SPDX-License-Identifier: Apache-2.0
// The greedy choice of a token from the logits of a row.
#pragma once

#include <math.h>
#include <stdint.h>

// The likeliest token, and the margin of its logit over the second largest logit.
struct likeliest {
    int32_t token;
    float margin;
};

static inline struct likeliest likeliest_of(const float *logits, int n)
{
    int best = 0;
    float next = -INFINITY;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            next = logits[best];
            best = i;
        } else if (logits[i] > next) {
            next = logits[i];
        }
    }
    return (struct likeliest){best, logits[best] - next};
}
