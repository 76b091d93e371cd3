// SPDX-License-Identifier: Apache-2.0
#include "kernels/bf12.h"

#include <string.h>

uint64_t bf12_choose(const uint32_t count[256], uint8_t exponent[BF12_EXPONENTS])
{
    uint64_t others = 0;
    uint8_t used[256] = {0};
    for (int i = 0; i < BF12_EXPONENTS; i++) {
        int best = -1;
        for (int e = 0; e < 256; e++)
            if (!used[e] && (best < 0 || count[e] > count[best])) best = e;
        used[best] = 1;
        exponent[i] = (uint8_t)best;
    }
    for (int e = 0; e < 256; e++)
        others += used[e] ? 0 : count[e];
    return others;
}

void bf12_codes(const uint8_t exponent[BF12_EXPONENTS], uint8_t code[256])
{
    memset(code, BF12_NO_CODE, 256);
    for (int i = 0; i < BF12_EXPONENTS; i++)
        code[exponent[i]] = (uint8_t)i;
}
