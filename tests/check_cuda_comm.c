// SPDX-License-Identifier: Apache-2.0
// A model over several emulated GPUs, joined by NCCL: it computes what one GPU computes, also in decode passes that are
// kept, and the same bits in halves whose sums run beside each other's steps as whole; it sizes its KV cache by the
// rank that has least room, a rank that fails is told of by all, and one that hangs is named. Ranks are threads; the
// GPUs that this needs several of are there in emulation alone.
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/engine.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/forward.h"
#include "tests/tiny_model.h"

enum { PROMPT = 21, STEPS = 5, VOCAB = 275 };

static struct model_options options_for(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = "cuda",
                                  .dtype = "bf16",
                                  .threads = 1,
                                  .max_rows = 64,
                                  .max_seqs = 4,
                                  .max_context = 256,
                                  .n_kv_blocks = 64};
}

static char *model_dir(void)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = VOCAB;
    return tiny_model_temp(&spec);
}

static void prefill(struct ranks *ranks, struct forward *f, float *logits)
{
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = (i * 31 + 7) % VOCAB;
    forward_start(f, 2);
    forward_add(f, 0, 0, tokens, NULL, PROMPT, LOGITS_LAST);
    forward_add(f, 1, 0, tokens + 4, NULL, PROMPT - 4, LOGITS_LAST);
    memcpy(logits, ranks_forward(ranks, &f->batch).logits, 2 * VOCAB * sizeof *logits);
}

// Two sequences a few tokens on, from the same tokens whatever the logits say.
static void decode(struct ranks *ranks, struct forward *f, int step, float *logits)
{
    forward_start(f, 2);
    forward_add(f, 0, PROMPT + step, (int32_t[]){100 + step}, NULL, 1, LOGITS_LAST);
    forward_add(f, 1, PROMPT - 4 + step, (int32_t[]){50 + step}, NULL, 1, LOGITS_LAST);
    memcpy(logits, ranks_forward(ranks, &f->batch).logits, 2 * VOCAB * sizeof *logits);
}

static void run(const char *dir, int size, float logits[STEPS + 1][2 * VOCAB])
{
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    struct model_options options = options_for(dir);
    ranks_open(&ranks, &options, size);
    prefill(&ranks, f, logits[0]);
    for (int step = 0; step < STEPS; step++)
        decode(&ranks, f, step, logits[step + 1]);
    ranks_close(&ranks);
    free(f);
}

// Sums over ranks round in another order, and partial sums of bf16 products in another place.
START_TEST(several_gpus_compute_what_one_does)
{
    static float one[STEPS + 1][2 * VOCAB], several[STEPS + 1][2 * VOCAB];
    char *dir = model_dir();
    run(dir, 1, one);
    int graphs = emulator_graph_launches();
    run(dir, _i, several);
    ck_assert_int_gt(emulator_graph_launches(), graphs); // NCCL's calls are kept with the pass
    double largest = 0, worst = 0;
    for (int s = 0; s <= STEPS; s++)
        for (int i = 0; i < 2 * VOCAB; i++) {
            largest = fmax(largest, fabs((double)one[s][i]));
            worst = fmax(worst, fabs((double)one[s][i] - (double)several[s][i]));
        }
    printf("%d GPUs: worst difference %.3g of logits up to %.3g\n", _i, worst, largest);
    ck_assert_double_lt(worst, 0.02 * largest);
    tiny_model_remove(dir);
}
END_TEST

enum { HALVES_SLOTS = 4, HALVES_FLOATS = 8 * VOCAB + 512 };

static void keep(float *kept, int *n, const float *from, int count)
{
    ck_assert_int_le(*n + count, HALVES_FLOATS);
    memcpy(kept + *n, from, (size_t)count * sizeof *kept);
    *n += count;
}

// Two passes of 119 and 101 rows: halves of 64 rows and the rest, cut within a prompt and within its continuation, with
// lone rows in either half, and probes that look at both. Returns how many floats came of them.
static int run_in_halves(const struct model_options *options, int size, float kept[HALVES_FLOATS], int *launches_p)
{
    static const int lengths[2][HALVES_SLOTS] = {{50, 1, 60, 8}, {1, 70, 1, 29}};
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    int cached[HALVES_SLOTS] = {0}, n = 0;
    ranks_open(&ranks, options, size);
    int before = emulator_launches();
    for (int pass = 0; pass < 2; pass++) {
        forward_start(f, HALVES_SLOTS);
        for (int slot = 0; slot < HALVES_SLOTS; slot++) {
            int32_t tokens[128];
            for (int i = 0; i < lengths[pass][slot]; i++)
                tokens[i] = (i * 31 + 7 + 50 * slot + 100 * pass) % VOCAB;
            forward_add(f, slot, cached[slot], tokens, NULL, lengths[pass][slot], LOGITS_LAST);
            cached[slot] += lengths[pass][slot];
            if (slot % 2 == 0) forward_probe(f, cached[slot] - pass, 3);
        }
        struct forward_result result = ranks_forward(&ranks, &f->batch);
        keep(kept, &n, result.logits, HALVES_SLOTS * VOCAB);
        keep(kept, &n, result.probes, (int)ragged_importance_size(&f->batch));
    }
    *launches_p = emulator_launches() - before;
    ranks_close(&ranks);
    free(f);
    return n;
}

// All that is emulated computes a row the same whatever its company, and streams of other ranks and beside go first: a
// step or a sum that does not wait for what it reads finds something else.
START_TEST(halves_compute_what_the_whole_does)
{
    static const char *const dtypes[][2] = {{"bf16", "bf16"}, {"fp8", "fp8"}};
    static float whole[HALVES_FLOATS], halves[HALVES_FLOATS];
    char *dir = model_dir();
    for (int d = 0; d < 2; d++) {
        struct model_options options = options_for(dir);
        options.dtype = dtypes[d][0];
        options.kv_dtype = dtypes[d][1];
        options.max_rows = 128;
        options.overlap_rows = 1000;
        int launches, in_halves;
        int n = run_in_halves(&options, _i, whole, &launches);
        options.overlap_rows = 50;
        ck_assert_int_eq(run_in_halves(&options, _i, halves, &in_halves), n);
        ck_assert_int_gt(in_halves, launches);
        for (int i = 0; i < n; i++)
            ck_assert_msg(memcmp(&whole[i], &halves[i], sizeof whole[i]) == 0,
                          "%s, number %d of %d: %g whole, %g in halves", options.dtype, i, n, (double)whole[i],
                          (double)halves[i]);
    }
    tiny_model_remove(dir);
}
END_TEST

START_TEST(the_cache_gets_what_is_left_everywhere)
{
    char *dir = model_dir();
    struct model_options options = options_for(dir);
    struct ranks ranks;
    options.n_kv_blocks = 0;
    options.gpu_memory_utilization = 0.5;
    ranks_open(&ranks, &options, 2);
    int blocks = model_kv_blocks(ranks.model[0]);
    ck_assert_int_gt(blocks, 64);
    ck_assert_int_eq(blocks, model_kv_blocks(ranks.model[1]));
    ranks_close(&ranks);

    options.gpu_memory_utilization = 1e-9; // less than the weights have taken
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "no room for 1 KV blocks"));
    ck_assert_ptr_nonnull(strstr(status_message(), "a higher gpu-memory-utilization"));

    options.n_kv_blocks = 100000000;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 1), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "no room for 100000000 KV blocks"));
    tiny_model_remove(dir);
}
END_TEST

// In a decode pass, or in one of halves.
START_TEST(a_rank_that_fails_is_told_of_by_all)
{
    static const int32_t tokens[100];
    char *dir = model_dir();
    struct model_options options = options_for(dir);
    options.max_rows = 128;
    options.overlap_rows = 50;
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    static float logits[2 * VOCAB];
    ranks_open(&ranks, &options, 2);
    prefill(&ranks, f, logits);
    emulator_fail_rank(1);
    struct forward_result result;
    forward_start(f, 2);
    forward_add(f, 0, PROMPT, tokens, NULL, _i ? 100 : 1, LOGITS_LAST);
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "NCCL: ") != NULL, "%s", status_message());
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_UNAVAILABLE); // and stays so
    emulator_fail_rank(-1);
    ranks_close(&ranks);
    free(f);
    tiny_model_remove(dir);
}
END_TEST

// ---- a rank of an engine that hangs ----

enum { ENGINES = 4, HANGS = 2 };

struct rank {
    pthread_t thread;
    struct comm *comm;
    const char *dir;
    struct engine *engine;
    enum status status;
    char message[1024]; // the sentence is the thread's own
};

static void *open_engine(void *arg)
{
    struct rank *r = arg;
    struct model_options options = options_for(r->dir);
    r->status = engine_open(&options, r->comm, &r->engine);
    return NULL;
}

static void *step_once(void *arg)
{
    struct rank *r = arg;
    if (r->comm->rank == 0) {
        const struct ragged_batch batch = ragged_warm_up_batch();
        struct forward_result result;
        r->comm->limit_ms = 500; // what engine_set_step_timeout comes down to, but for the watchdog
        r->status = engine_forward(r->engine, &batch, &result);
        emulator_hang_rank(-1);
    } else {
        r->status = engine_follow(r->engine);
    }
    snprintf(r->message, sizeof r->message, "%s", status_message());
    engine_close(r->engine);
    return NULL;
}

static void on_all(struct rank *ranks, void *(*what)(void *))
{
    for (int r = 0; r < ENGINES; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, what, &ranks[r]), 0);
    for (int r = 0; r < ENGINES; r++)
        pthread_join(ranks[r].thread, NULL);
}

START_TEST(a_rank_that_hangs_is_named)
{
    char *dir = model_dir();
    struct rank ranks[ENGINES] = {0};
    struct comm *comms[ENGINES];
    ck_assert_int_eq(comm_open_threads(ENGINES, comms), STATUS_OK);
    for (int r = 0; r < ENGINES; r++) {
        ranks[r].comm = comms[r];
        ranks[r].dir = dir;
    }
    on_all(ranks, open_engine);
    for (int r = 0; r < ENGINES; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    emulator_hang_rank(HANGS);
    on_all(ranks, step_once);
    ck_assert_int_eq(ranks[0].status, STATUS_UNAVAILABLE);
    static const char *const says[] = {"rank 0 on ", ": a step waits for its GPU since 0.5 s: all 4 ranks answer, the ",
                                       "others wait for ", "rank 2 (host "};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        ck_assert_msg(strstr(ranks[0].message, says[i]) != NULL, "%s: %s", says[i], ranks[0].message);
    for (int r = 0; r < ENGINES; r++)
        comms[r]->ops->close(comms[r]);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(more_ranks_than_gpus_are_refused_with_both_numbers)
{
    char *dir = model_dir();
    struct model_options options = options_for(dir);
    struct ranks ranks;
    emulator_set_devices(2);
    options.host_rank = 1;
    options.host_ranks = 3;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 1), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "3 ranks on this host, which has 2 GPUs"));
    options.host_ranks = 2;
    ranks_open(&ranks, &options, 1);
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

int main(void)
{
    log_setup("test", LOG_ERROR);
    Suite *suite = suite_create("cuda_comm");
    TCase *tc = tcase_create("comm");
    tcase_add_loop_test(tc, several_gpus_compute_what_one_does, 2, 3);
    tcase_add_loop_test(tc, several_gpus_compute_what_one_does, 4, 5);
    tcase_add_loop_test(tc, halves_compute_what_the_whole_does, 2, 3);
    tcase_add_loop_test(tc, halves_compute_what_the_whole_does, 4, 5);
    tcase_add_test(tc, the_cache_gets_what_is_left_everywhere);
    tcase_add_test(tc, more_ranks_than_gpus_are_refused_with_both_numbers);
    tcase_add_loop_test(tc, a_rank_that_fails_is_told_of_by_all, 0, 2);
    tcase_add_test(tc, a_rank_that_hangs_is_named);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
