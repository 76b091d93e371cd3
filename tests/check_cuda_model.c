// SPDX-License-Identifier: Apache-2.0
// Logits of dummy models on the CUDA backend against the CPU backend: packed prompts, then decode passes, of which the
// third replays a captured graph. The shapes are tiny. On a GPU they also have head sizes 64 (llama-110m) and 128 (two
// layers of the 8B shape). The GPU kit runs this test first: it prints how far the logits differ.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/cuda_fixture.h"
#include "tests/forward.h"
#include "tests/suite.h"

enum { SEQUENCES = 3, DECODE_PASSES = 4, LONGEST = 300 };

static const struct {
    const char *shape;
    int vocab;
    int prompt[SEQUENCES]; // tokens
} cases[] = {
    {"tests/data/shapes/tiny.json", 515, {70, 5, 18}},
    {"tests/data/shapes/tiny-qwen3.json", 515, {70, 5, 18}},
    {"bench/shapes/llama-110m.json", 32000, {200, 5, 37}},
    {"tests/data/shapes/wide.json", 4099, {LONGEST, 5, 37}},
};
enum { TINY_CASES = 2, CASES = sizeof cases / sizeof cases[0] };

static const char *device = "cuda"; // "cpu" compares the CPU backend with the reference

// Both sides round activations to bf16, but sum in different orders.
static const double LARGEST_DIFFERENCE = 0.02; // ||a - b|| / ||b||

static int32_t token_at(int sequence, int position, int vocab)
{
    return (int32_t)(((uint32_t)position * 2654435761u + (uint32_t)sequence * 97u) % (uint32_t)vocab);
}

// Returns the logits of the last rows of the prompts, then of every decode pass: [SEQUENCES * (1 +
// DECODE_PASSES)][vocab].
static float *logits_of(int which, const char *backend)
{
    static struct forward f;
    const char *source = getenv("FOREPACK_SOURCE");
    const int vocab = cases[which].vocab;
    char *path = mem_format("%s/%s", source ? source : ".", cases[which].shape);
    const struct model_options options = {.dir = path,
                                          .dummy = true,
                                          .backend = backend,
                                          .dtype = "bf16",
                                          .max_rows = 512,
                                          .max_seqs = 8,
                                          .max_context = 512,
                                          .n_kv_blocks = SEQUENCES * FORWARD_MAX_BLOCKS};
    struct ranks ranks;
    ranks_open(&ranks, &options, 1);
    const size_t pass = (size_t)SEQUENCES * (size_t)vocab;
    float *logits = mem_alloc_array((1 + DECODE_PASSES) * pass, sizeof *logits);
    for (int p = 0; p <= DECODE_PASSES; p++) {
        forward_start(&f, SEQUENCES);
        for (int s = 0; s < SEQUENCES; s++) {
            const int cached = p ? cases[which].prompt[s] + p - 1 : 0, rows = p ? 1 : cases[which].prompt[s];
            int32_t token[LONGEST];
            for (int i = 0; i < rows; i++)
                token[i] = token_at(s, cached + i, vocab);
            forward_add(&f, s, cached, token, NULL, rows, LOGITS_LAST);
        }
        memcpy(logits + (size_t)p * pass, ranks_forward(&ranks, &f.batch).logits, pass * sizeof *logits);
    }
    ranks_close(&ranks);
    free(path);
    return logits;
}

START_TEST(logits_are_those_of_the_cpu)
{
    const size_t pass = (size_t)SEQUENCES * (size_t)cases[_i].vocab;
    float *got = logits_of(_i, device), *want = logits_of(_i, strcmp(device, "cpu") ? "cpu" : "reference");
    for (size_t p = 0; p <= DECODE_PASSES; p++) {
        double difference = 0, size = 0;
        for (size_t i = p * pass; i < (p + 1) * pass; i++) {
            difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
            size += (double)want[i] * (double)want[i];
        }
        const double relative = sqrt(difference / size);
        printf("%s, pass %zu: logits differ by %.5f of their size\n", cases[_i].shape, p, relative);
        ck_assert_msg(relative <= LARGEST_DIFFERENCE, "%s, pass %zu: logits differ by %g of their size (at most %g)",
                      cases[_i].shape, p, relative, LARGEST_DIFFERENCE);
    }
    free(got);
    free(want);
}
END_TEST

SUITE("cuda_model")
{
    if (argc > 1) device = argv[1];
    SKIP_UNLESS(strcmp(device, "cuda") != 0 || cuda_is_here());
    const bool on_gpu = strcmp(device, "cuda") == 0 && !EMULATED;
    TIMEOUT(120);
    LOOP(logits_are_those_of_the_cpu, 0, on_gpu ? CASES : TINY_CASES);
}
