// SPDX-License-Identifier: Apache-2.0
// What a fuzz target defines; libFuzzer or replay.c calls it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A property that must hold for every input.
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
