// SPDX-License-Identifier: Apache-2.0
// bench/perplexity.h: the result equals that of the slow forward pass for any pass size, window and stride.
#include <math.h>
#include <stdlib.h>

#include "bench/perplexity.h"
#include "engine/block_manager.h"
#include "lib/base/mem.h"
#include "tests/slow_llama.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

enum { LONGEST = 100 };

static struct engine *open_engine(const char *dir, const struct perplexity_limits *limits, struct comm **comm_p)
{
    const struct model_options options = {.dir = dir,
                                          .backend = "cpu",
                                          .dtype = "f32",
                                          .threads = 1,
                                          .max_rows = limits->rows,
                                          .max_seqs = 1,
                                          .max_logit_rows = limits->rows,
                                          .max_context = limits->window,
                                          .n_kv_blocks = kv_blocks_for(limits->window)};
    struct engine *engine;
    ck_assert_int_eq(comm_open_self(comm_p), STATUS_OK);
    ck_assert_msg(engine_open(&options, *comm_p, &engine) == STATUS_OK, "%s", status_message());
    return engine;
}

// Returns -ln p of token `at`, predicted in the first window that contains it.
static double slow_nats(const struct slow_llama *slow, int vocab, const int32_t *ids, int n, int at, int window,
                        int stride)
{
    int start = 0;
    while (start + window <= at)
        start += stride;
    int length = n - start < window ? n - start : window;
    int32_t position[LONGEST];
    for (int i = 0; i < length; i++)
        position[i] = i;
    double *logits = mem_alloc_array((size_t)length * (size_t)vocab, sizeof *logits), sum = 0;
    slow_llama_run(slow, ids + start, position, length, logits, NULL);
    const double *row = logits + (size_t)(at - start - 1) * (size_t)vocab;
    for (int i = 0; i < vocab; i++)
        sum += exp(row[i]);
    double nats = log(sum) - row[ids[at]];
    free(logits);
    return nats;
}

START_TEST(equals_the_slow_sum_over_windows)
{
    static const struct {
        int n, window, stride, rows, first;
    } cases[] = {{LONGEST, LONGEST, 50, LONGEST, 1},
                 {LONGEST, LONGEST, 50, 7, 1},
                 {LONGEST, 40, 20, 16, 1},
                 {LONGEST, 40, 39, 40, 1},
                 {97, 33, 5, 8, 1},
                 {40, 40, 20, 40, 1},
                 {41, 40, 20, 40, 1},
                 {2, 40, 20, 40, 1},
                 {97, 33, 5, 8, 90},
                 {LONGEST, 40, 20, 16, 41},
                 {LONGEST, 40, 20, 7, 39}};
    struct tiny_model spec = tiny_model_spec("llama");
    struct slow_llama *slow = slow_llama_create(&spec);
    char *dir = tiny_model_temp(&spec);
    int32_t ids[LONGEST];
    for (int i = 0; i < LONGEST; i++)
        ids[i] = (i * 37 + i * i) % spec.vocab_size;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const struct perplexity_limits limits = {cases[c].rows, cases[c].window, cases[c].stride};
        struct comm *comm;
        struct engine *engine = open_engine(dir, &limits, &comm);
        struct perplexity sum = {0};
        int first = cases[c].first;
        ck_assert_msg(perplexity_add(engine, &limits, ids, cases[c].n, first, &sum) == STATUS_OK, "%s",
                      status_message());
        double wanted = 0;
        for (int at = first; at < cases[c].n; at++)
            wanted += slow_nats(slow, spec.vocab_size, ids, cases[c].n, at, cases[c].window, cases[c].stride);
        ck_assert_int_eq(sum.tokens, cases[c].n - first);
        ck_assert_msg(fabs(sum.nats - wanted) < 1e-4 * wanted, "case %zu: %.9g, slow %.9g", c, sum.nats, wanted);
        engine_close(engine);
        comm->ops->close(comm);
    }
    tiny_model_remove(dir);
    slow_llama_free(slow);
}
END_TEST

START_TEST(nats_of_known_logits)
{
    const float even[4] = {500, 500, 500, 500}, sure[2] = {-1000, 1000};
    ck_assert_double_eq_tol(perplexity_nats(even, 4, 2), log(4), 1e-12);
    ck_assert_double_eq_tol(perplexity_nats(sure, 2, 1), 0, 1e-12);
    ck_assert_double_eq_tol(perplexity_nats(sure, 2, 0), 2000, 1e-9);
}
END_TEST

SUITE("perplexity")
{
    TIMEOUT(60);
    TEST(equals_the_slow_sum_over_windows);
    TEST(nats_of_known_logits);
}
