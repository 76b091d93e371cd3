// SPDX-License-Identifier: Apache-2.0
// Tokens sampled on the device against the CPU sampler: the same logits and random number give the same token, with the
// vocabulary in one part and in several. The most likely token is tested against a plain loop.
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"
#include "lib/base/random.h"
#include "tests/cuda_here.h"
#include "tests/suite.h"
#include "worker/sampler.h"

enum { ROWS = 40, V_MAX = 5003 };

static struct random_source source;

static uint64_t random_bits(void)
{
    return random_next(&source);
}

static int below(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

static double real(double from, double to)
{
    return from + (to - from) * (double)(random_bits() >> 11) * 0x1p-53;
}

static void *on_device(const void *host, size_t bytes)
{
    void *device;
    ck_assert_int_eq(cudaMalloc(&device, bytes), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return device;
}

// Fills rows of V logits: smooth, coarse (many equal ones), steep, with NaN and infinities.
static void logits_fill(float *logits, int rows, int v)
{
    for (int r = 0; r < rows; r++) {
        int kind = below(4);
        for (int i = 0; i < v; i++) {
            double x = real(-8, 8);
            float *at = &logits[(size_t)r * (size_t)v + (size_t)i];
            *at = (float)(kind == 0 ? x : kind == 1 ? floor(x / 2) : kind == 2 ? x * fabs(x) : x / 100);
            if (kind == 1 && *at == 0 && below(2)) *at = -0.0f;
            if (kind == 2 && below(50) == 0) *at = below(2) ? -INFINITY : below(2) ? NAN : INFINITY;
        }
    }
}

// Returns logits in the layout after a gather over `parts` ranks: [part][row][columns]. Values after the vocabulary
// must not be read.
static float *in_parts(const float *logits, int rows, int v, int parts, int columns)
{
    float *out = malloc((size_t)parts * (size_t)rows * (size_t)columns * sizeof *out);
    for (int p = 0; p < parts; p++)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                int id = p * columns + c;
                out[((size_t)p * (size_t)rows + (size_t)r) * (size_t)columns + (size_t)c] =
                    id < v ? logits[(size_t)r * (size_t)v + (size_t)id] : 1e30f;
            }
    return out;
}

static void sample_run(const float *logits, int rows, int v, int parts, int32_t first_id,
                       const struct row_sampling *params, struct sampled_id *sampled)
{
    int columns = (v + parts - 1) / parts;
    float *laid = in_parts(logits, rows, v, parts, columns);
    size_t bytes = (size_t)parts * (size_t)rows * (size_t)columns * sizeof *laid;
    const struct logit_rows all = {.data = on_device(laid, bytes),
                                   .part = (int64_t)rows * columns,
                                   .row_stride = columns,
                                   .columns = columns,
                                   .n_ids = v,
                                   .first_id = first_id};
    struct row_sampling *device_params = params ? on_device(params, (size_t)rows * sizeof *params) : NULL;
    memset(sampled, 0x55, (size_t)rows * sizeof *sampled);
    struct sampled_id *out = on_device(sampled, (size_t)rows * sizeof *sampled);
    cudaError_t error =
        params ? launch_sample(NULL, &all, rows, device_params, out) : launch_argmax(NULL, &all, rows, out);
    ck_assert_int_eq(error, cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(sampled, out, (size_t)rows * sizeof *sampled, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree((void *)all.data);
    cudaFree(device_params);
    cudaFree(out);
    free(laid);
}

static const int vocabularies[] = {1, 2, 31, 33, 260, 1000, 1025, V_MAX};
enum { N_VOCABULARIES = sizeof vocabularies / sizeof *vocabularies };

START_TEST(the_most_likely_token_matches_a_plain_loop)
{
    int v = vocabularies[_i];
    source.state = 11 + (uint64_t)_i;
    float *logits = malloc(ROWS * (size_t)v * sizeof *logits);
    struct sampled_id sampled[ROWS];
    logits_fill(logits, ROWS, v);
    for (int i = 0; i < v; i++)
        logits[i] = i % 2 ? NAN : -INFINITY; // no token can be sampled in the first row
    for (int parts = 1; parts <= 3 && (parts - 1) * ((v + parts - 1) / parts) < v; parts += 2) {
        sample_run(logits, ROWS, v, parts, 7000, NULL, sampled);
        for (int r = 0; r < ROWS; r++) {
            const float *row = logits + (size_t)r * (size_t)v;
            float largest = -INFINITY;
            int best = -1;
            for (int i = 0; i < v; i++)
                if (row[i] > largest) largest = row[i], best = i;
            ck_assert_int_eq(sampled[r].id, best < 0 ? -1 : 7000 + best);
            if (best >= 0) ck_assert(sampled[r].logit == fminf(largest, 3.40282347e38f));
        }
    }
    free(logits);
}
END_TEST

static void random_sampling(struct sampling *p, int v)
{
    sampling_defaults(p);
    p->max_tokens = 1000;
    p->seed = random_bits();
    p->temperature = below(6) ? real(0.1, 3) : 0;
    if (below(2)) p->top_k = 1 + below(v + 10);
    if (below(2)) p->top_p = real(0.01, 1);
    if (below(3) == 0) p->min_p = real(0, 1);
    if (below(8) == 0) p->min_p = 1;
}

// At the boundary of two tokens both are right within rounding. With these seeds no random number is that close.
START_TEST(tokens_match_the_sampler)
{
    int v = vocabularies[_i];
    source.state = 1000 + (uint64_t)_i;
    float *logits = malloc(ROWS * (size_t)v * sizeof *logits);
    struct sampled_id sampled[ROWS];
    struct row_sampling params[ROWS];
    int32_t expected[ROWS];
    static const int32_t output[1000];
    struct sampler *s = sampler_create(v);
    logits_fill(logits, ROWS, v);
    for (int i = 0; i < v; i++)
        logits[i] = NAN;
    for (int r = 0; r < ROWS; r++) {
        struct sampling sampling;
        random_sampling(&sampling, v);
        struct sampler_context context = {.sampling = &sampling, .output = output, .n_output = below(1000)};
        struct sampled_token token = {.token = -1};
        ck_assert(sampler_backend_can_sample(&context));
        params[r] = sampler_row_sampling(&context);
        sampler_sample_token(s, logits + (size_t)r * (size_t)v, &context, &token);
        expected[r] = token.token;
    }
    for (int parts = 1; parts <= 4 && (parts - 1) * ((v + parts - 1) / parts) < v; parts += 3) {
        sample_run(logits, ROWS, v, parts, 0, params, sampled);
        for (int r = 0; r < ROWS; r++)
            ck_assert_msg(sampled[r].id == expected[r], "row %d of %d logits in %d parts: token %d, expected %d", r, v,
                          parts, sampled[r].id, expected[r]);
    }
    sampler_free(s);
    free(logits);
}
END_TEST

SUITE("cuda_sample")
{
    SKIP_UNLESS(cuda_is_here());
    NO_FORK();
    LOOP(the_most_likely_token_matches_a_plain_loop, 0, N_VOCABULARIES);
    LOOP(tokens_match_the_sampler, 0, N_VOCABULARIES);
}
