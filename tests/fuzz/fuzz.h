// SPDX-License-Identifier: Apache-2.0
// The function that a fuzz target defines (libFuzzer or replay.c calls it), and functions with which targets read their
// input.
#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Handles an input, which is any sequence of bytes. The target must be deterministic and independent of earlier inputs.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Checks a property that must hold for every input.
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(2, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

// An input read as a script: numbers are taken from its front. At its end a script gives zeros.
struct fuzz_script {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t fuzz_byte(struct fuzz_script *script)
{
    if (!script->left) return 0;
    script->left--;
    return *script->at++;
}

static inline int fuzz_below(struct fuzz_script *script, int n) // 0 .. n-1; n at most 256
{
    return fuzz_byte(script) % n;
}

// Returns mostly small numbers, but also the largest ones and numbers at the borders of types.
static inline uint64_t fuzz_number(struct fuzz_script *script)
{
    uint64_t byte = fuzz_byte(script), number = 0;
    if (byte < 240) return byte;
    if (byte >= 248) return (UINT64_C(1) << (8 * (byte - 247) - 1)) - (fuzz_byte(script) & 1);
    for (uint64_t i = 240; i <= byte; i++)
        number = number << 8 | fuzz_byte(script);
    return number;
}

static inline double fuzz_real(struct fuzz_script *script)
{
    static const double reals[] = {0,    1,        0.5, 0.3,       2,        -1,           -2,    100,
                                   1e-9, INFINITY, NAN, -INFINITY, 1.000001, DBL_TRUE_MIN, 1e300, -0.0};
    return reals[fuzz_below(script, sizeof reals / sizeof *reals)];
}

// Takes up to `most` bytes of the script.
static inline struct fuzz_script fuzz_part(struct fuzz_script *script, size_t most)
{
    struct fuzz_script part = {script->at, most < script->left ? most : script->left};
    script->at += part.left;
    script->left -= part.left;
    return part;
}

// Takes the bytes up to and including the first NUL, for parts of an input that are texts.
static inline struct fuzz_script fuzz_text(struct fuzz_script *script)
{
    const uint8_t *end = script->left ? memchr(script->at, 0, script->left) : NULL;
    struct fuzz_script part = fuzz_part(script, end ? (size_t)(end - script->at) : script->left);
    fuzz_byte(script);
    return part;
}

// Takes such a text as a string. The caller frees it.
static inline char *fuzz_string(struct fuzz_script *script)
{
    struct fuzz_script part = fuzz_text(script);
    char *text = malloc(part.left + 1);
    if (!text) abort();
    if (part.left) memcpy(text, part.at, part.left);
    text[part.left] = 0;
    return text;
}
