// SPDX-License-Identifier: Apache-2.0
// Models of families whose layers differ from Llama's. Every backend computes, with any number of ranks, what the
// reference backend computes with one rank. A row has the same bits however its prompt is divided into chunks. The
// argument is the name of the backend. tests/integration/transformers.sh compares one rank with transformers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/cuda_fixture.h"
#include "tests/forward.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

enum { PROMPTS = 3, STEPS = 4, VOCAB = 272, LONGEST = 90 };

static const char *const families[] = {"granite", "olmo2", "arcee", "apertus", "ministral3", "mlp-bias", "qwen3"};
enum { FAMILIES = sizeof families / sizeof families[0] };
static const int lengths[PROMPTS] = {LONGEST, 3, 37};

static const char *backend = "cpu";

static int32_t token_at(int prompt, int i)
{
    return (int32_t)(((uint32_t)i * 2654435761u + (uint32_t)prompt * 97u) % VOCAB);
}

static void open_model(struct ranks *ranks, const char *dir, const char *name, const char *dtype, int size)
{
    const struct model_options options = options_for(dir, name, dtype);
    ranks_open(ranks, &options, size);
}

// Adds rows [from, to) of a prompt.
static void add_rows(struct forward *f, int prompt, int from, int to, enum logit_rows logits)
{
    int32_t token[LONGEST + STEPS];
    for (int i = from; i < to; i++)
        token[i - from] = token_at(prompt, i);
    forward_add(f, prompt, from, token, NULL, to - from, logits);
}

// Returns the logits of all rows of the prompts, then of the last rows of a pass that has others, then of single rows.
static float *run(struct ranks *ranks, size_t *n_p)
{
    static struct forward f;
    const int rows = lengths[0] + lengths[1] + lengths[2] + PROMPTS * (1 + STEPS);
    float *all = mem_alloc_array((size_t)rows * VOCAB, sizeof *all), *to = all;
    for (int pass = 0; pass < 2 + STEPS; pass++) {
        forward_start(&f, PROMPTS);
        for (int p = 0; p < PROMPTS; p++) {
            const int from = pass < 2 ? 0 : lengths[p] + pass - 2;
            add_rows(&f, p, from, pass < 2 ? lengths[p] : from + 1, pass ? LOGITS_LAST : LOGITS_ALL);
        }
        const size_t n = (size_t)f.batch.n_logit_rows * VOCAB;
        memcpy(to, ranks_forward(ranks, &f.batch).logits, n * sizeof *to);
        to += n;
    }
    *n_p = (size_t)(to - all);
    return all;
}

static double distance(const float *got, const float *want, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(difference / size);
}

static void compare(const char *dir, const char *family, const char *dtype, const float *want, double bound)
{
    const bool cuda = strcmp(backend, "cuda") == 0;
    const int most = !cuda ? 8 : EMULATED ? 2 : 1; // 8 ranks share 4 KV heads
    for (int size = 1; size <= most; size *= 2) {
        struct ranks ranks;
        size_t n;
        open_model(&ranks, dir, backend, dtype, size);
        float *got = run(&ranks, &n);
        const double d = distance(got, want, n);
        ck_assert_msg(d <= bound, "%s on %s in %s, %d ranks: logits differ by %g of their size (at most %g)", family,
                      backend, dtype, size, d, bound);
        ranks_close(&ranks);
        free(got);
    }
}

START_TEST(every_backend_and_number_of_ranks_computes_what_the_reference_does)
{
    for (int bf16 = strcmp(backend, "cuda") == 0; bf16 < 2; bf16++) {
        struct tiny_model spec = tiny_model_spec(families[_i]);
        spec.dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
        char *dir = tiny_model_temp(&spec);
        struct ranks ranks;
        size_t n;
        open_model(&ranks, dir, "reference", bf16 ? "bf16" : "f32", 1);
        float *want = run(&ranks, &n);
        ranks_close(&ranks);
        compare(dir, families[_i], bf16 ? "bf16" : "f32", want, bf16 ? 0.02 : 1e-5);
        free(want);
        tiny_model_remove(dir);
    }
}
END_TEST

// Prompts in chunks, and passes that leave out layers (drafts), give rows the same bits.
START_TEST(a_row_does_not_depend_on_chunks)
{
    static struct forward f;
    struct tiny_model spec = tiny_model_spec(families[_i]);
    char *dir = tiny_model_temp(&spec);
    struct ranks ranks;
    open_model(&ranks, dir, "cpu", "f32", 1);
    for (int skipped = 0; skipped < 2; skipped++) {
        float *whole[PROMPTS];
        for (int p = 0; p < PROMPTS; p++) {
            forward_start(&f, PROMPTS);
            add_rows(&f, p, 0, lengths[p], LOGITS_ALL);
            f.batch.skipped_layers = skipped;
            whole[p] = mem_copy(ranks_forward(&ranks, &f.batch).logits, (size_t)(lengths[p] * VOCAB) * sizeof(float));
        }
        for (int p = 0; p < PROMPTS; p++)
            for (int done = 0, n; done < lengths[p]; done += n) {
                n = 1 + random_below(30);
                n = n < lengths[p] - done ? n : lengths[p] - done;
                forward_start(&f, PROMPTS);
                add_rows(&f, p, done, done + n, LOGITS_LAST);
                f.batch.skipped_layers = skipped;
                const float *last = whole[p] + (size_t)(done + n - 1) * VOCAB;
                ck_assert_mem_eq(ranks_forward(&ranks, &f.batch).logits, last, VOCAB * sizeof *last);
            }
        for (int p = 0; p < PROMPTS; p++)
            free(whole[p]);
    }
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

SUITE("families")
{
    if (argc > 1) backend = argv[1];
    SKIP_UNLESS(strcmp(backend, "cuda") != 0 || cuda_is_here());
    TIMEOUT(120);
    LOOP(every_backend_and_number_of_ranks_computes_what_the_reference_does, 0, FAMILIES);
    LOOP(a_row_does_not_depend_on_chunks, 0, strcmp(backend, "cpu") == 0 ? FAMILIES : 0);
}
