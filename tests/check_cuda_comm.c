// SPDX-License-Identifier: Apache-2.0
// A model over several emulated GPUs, connected by NCCL. It computes the same as one GPU, also in captured decode
// passes. Two micro-batches give the same bits as the whole batch. Partial sums are in windows where NCCL has them. The
// rank with the least room decides the size of the KV cache. Every rank has its own GPU. All ranks report a failed
// rank, and a hung rank is named. Ranks are threads. A machine rarely has several GPUs, so this test runs in emulation
// only.
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "kernels/emulator/emulator.h"
#include "lib/base/log.h"
#include "tests/comm_threads.h"
#include "tests/forward.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

extern int nccl_connect_limit_ms, nccl_sums_in_flight; // kernels/cuda/comm_nccl.c

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

static char *model_dir;

static void make_model(void)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = VOCAB;
    model_dir = tiny_model_temp(&spec);
}

static void remove_model(void)
{
    tiny_model_remove(model_dir);
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

// Decodes two sequences with fixed tokens, independent of the logits.
static void decode(struct ranks *ranks, struct forward *f, int step, float *logits)
{
    forward_start(f, 2);
    forward_add(f, 0, PROMPT + step, (int32_t[]){100 + step}, NULL, 1, LOGITS_LAST);
    forward_add(f, 1, PROMPT - 4 + step, (int32_t[]){50 + step}, NULL, 1, LOGITS_LAST);
    memcpy(logits, ranks_forward(ranks, &f->batch).logits, 2 * VOCAB * sizeof *logits);
}

static void run(const char *dir, const char *backend, int size, const char *allreduce_dtype,
                float logits[STEPS + 1][2 * VOCAB])
{
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    struct model_options options = options_for(dir);
    options.backend = backend;
    options.dtype = strcmp(backend, "cuda") == 0 ? "bf16" : "f32";
    options.allreduce_dtype = allreduce_dtype;
    ranks_open(&ranks, &options, size);
    prefill(&ranks, f, logits[0]);
    for (int step = 0; step < STEPS; step++)
        decode(&ranks, f, step, logits[step + 1]);
    ranks_close(&ranks);
    free(f);
}

struct difference {
    double worst, rms, largest; // of two runs, and the largest logit
};

static struct difference compare(float a[STEPS + 1][2 * VOCAB], float b[STEPS + 1][2 * VOCAB])
{
    struct difference d = {0};
    for (int s = 0; s <= STEPS; s++)
        for (int i = 0; i < 2 * VOCAB; i++) {
            const double error = fabs((double)a[s][i] - (double)b[s][i]);
            d.largest = fmax(d.largest, fabs((double)a[s][i]));
            d.worst = fmax(d.worst, error);
            d.rms += error * error / ((STEPS + 1) * 2 * VOCAB);
        }
    d.rms = sqrt(d.rms);
    return d;
}

// Sums in f32 differ from one GPU in their order only. Sums in bf16 have an additional rounding. It adds to the error
// against f32 by less than the error of bf16 activations.
START_TEST(several_gpus_compute_what_one_does)
{
    static float exact[STEPS + 1][2 * VOCAB], one[STEPS + 1][2 * VOCAB], several[STEPS + 1][2 * VOCAB];
    run(model_dir, "reference", 1, "auto", exact);
    run(model_dir, "cuda", 1, "auto", one);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        int graphs = emulator_graph_launches();
        run(model_dir, "cuda", _i, bf16 ? "bf16" : "f32", several);
        ck_assert_int_gt(emulator_graph_launches(), graphs); // NCCL's calls are captured with the pass
        const struct difference of_one = compare(exact, one), of_all = compare(exact, several);
        const struct difference between = compare(one, several);
        printf(
            "%d GPUs, sums in %s: errors %.3g rms, %.3g worst, %.3g and %.3g on one GPU, differences %.3g and %.3g\n",
            _i, bf16 ? "bf16" : "f32", of_all.rms, of_all.worst, of_one.rms, of_one.worst, between.rms, between.worst);
        if (!bf16) ck_assert_double_lt(between.worst, 0.02 * between.largest);
        ck_assert_double_lt(of_all.rms, 1.25 * of_one.rms);
    }
}
END_TEST

// ---- windows --------------------------------------------------------------------------------------------------------

enum { LAYERS = 2 };

// Runs a prefill pass on 4 ranks. Returns the number of sums in windows, and in *in_memory_p the number in other
// memory.
static int prefill_sums(const struct model_options *options, int windows, float *logits, int *in_memory_p)
{
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    ranks_open(&ranks, options, 4);
    ck_assert_int_eq(emulator_nccl_windows(), windows);
    const int in_windows = emulator_nccl_sums_in_windows(), in_memory = emulator_nccl_sums_in_memory();
    prefill(&ranks, f, logits);
    *in_memory_p = emulator_nccl_sums_in_memory() - in_memory;
    const int sums = emulator_nccl_sums_in_windows() - in_windows;
    ranks_close(&ranks);
    ck_assert_int_eq(emulator_nccl_windows(), 0);
    ck_assert_uint_eq(emulator_memory_used(), 0);
    free(f);
    return sums;
}

START_TEST(partial_sums_lie_in_windows_where_nccl_has_them)
{
    // 2.28 to 2.30.6: see comm_memory.c.
    static const struct {
        int version;
        bool windows;
    } versions[] = {{21800, false}, {22605, false}, {22703, true}, {22809, false}, {23006, false}, {23007, true}};
    static float logits[2][2 * VOCAB];
    struct model_options options = options_for(model_dir);
    const int sums = 4 * 2 * LAYERS;
    int in_memory;
    ck_assert_int_eq(prefill_sums(&options, 4, logits[0], &in_memory), sums);
    ck_assert_int_eq(in_memory, 0);
    emulator_set_nccl_windows(EMULATED_WINDOWS_NONE);
    ck_assert_int_eq(prefill_sums(&options, 0, logits[1], &in_memory), 0);
    ck_assert_int_eq(in_memory, sums);
    ck_assert_mem_eq(logits[1], logits[0], sizeof logits[0]);
    emulator_set_nccl_windows(EMULATED_WINDOWS);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const bool windows = versions[i].windows;
        emulator_set_nccl_version(versions[i].version);
        ck_assert_int_eq(prefill_sums(&options, windows ? 4 : 0, logits[1], &in_memory), windows ? sums : 0);
        ck_assert_int_eq(in_memory, windows ? 0 : sums);
        ck_assert_mem_eq(logits[1], logits[0], sizeof logits[0]);
    }
    emulator_set_nccl_version(EMULATED_NCCL);
    options.allreduce_dtype = "f32";
    ck_assert_int_eq(prefill_sums(&options, 0, logits[1], &in_memory), 0);
    ck_assert_int_eq(in_memory, 0);
}
END_TEST

START_TEST(a_window_that_cannot_be_registered_is_reported_by_all)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    emulator_set_nccl_windows(EMULATED_WINDOWS_FAIL);
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "the memory of partial sums (NCCL_WIN_ENABLE=0 does without): NCCL: ") !=
                      NULL,
                  "%s", status_message());
    emulator_set_nccl_windows(EMULATED_WINDOWS);
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

START_TEST(other_dtypes_of_sums_are_refused)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    options.allreduce_dtype = "fp8";
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "allreduce-dtype fp8: must be one of auto|f32|bf16"));
}
END_TEST

START_TEST(pipeline_stages_are_refused)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    options.stages = 2;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "pp 2: backend cuda cannot send rows to another stage yet"));
}
END_TEST

enum { SLOTS = 4, RESULT_FLOATS = 8 * VOCAB + 512 };

static void results_append(float *results, int *n, const float *from, int count)
{
    ck_assert_int_le(*n + count, RESULT_FLOATS);
    memcpy(results + *n, from, (size_t)count * sizeof *results);
    *n += count;
}

// Runs two passes of 119 and 101 rows. Each has a micro-batch of 64 rows and one of the rest, divided within a prompt
// or its continuation. Both have single rows, and importance rows attend to both. Returns the number of result floats.
static int run_two_passes(const struct model_options *options, int size, float results[RESULT_FLOATS], int *launches_p)
{
    static const int lengths[2][SLOTS] = {{50, 1, 60, 8}, {1, 70, 1, 29}};
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    int cached[SLOTS] = {0}, n = 0;
    ranks_open(&ranks, options, size);
    int before = emulator_launches();
    for (int pass = 0; pass < 2; pass++) {
        forward_start(f, SLOTS);
        for (int slot = 0; slot < SLOTS; slot++) {
            int32_t tokens[128];
            for (int i = 0; i < lengths[pass][slot]; i++)
                tokens[i] = (i * 31 + 7 + 50 * slot + 100 * pass) % VOCAB;
            forward_add(f, slot, cached[slot], tokens, NULL, lengths[pass][slot], LOGITS_LAST);
            cached[slot] += lengths[pass][slot];
            if (slot % 2 == 0) forward_add_importance(f, cached[slot] - pass, 3);
        }
        struct forward_result result = ranks_forward(&ranks, &f->batch);
        results_append(results, &n, result.logits, SLOTS * VOCAB);
        results_append(results, &n, result.importance, (int)ragged_importance_size(&f->batch));
    }
    *launches_p = emulator_launches() - before;
    ranks_close(&ranks);
    free(f);
    return n;
}

// The emulated library computes a row in the same way in every batch. The emulator runs other streams first, so a step
// or a sum that does not wait for its input reads wrong values.
START_TEST(micro_batches_give_the_bits_of_the_whole_batch)
{
    static const char *const dtypes[][3] = {{"bf16", "bf16", "bf16"}, {"fp8", "fp8", "bf16"}, {"bf16", "bf16", "f32"}};
    static float whole[RESULT_FLOATS], micro[RESULT_FLOATS];
    for (int d = 0; d < 3; d++) {
        struct model_options options = options_for(model_dir);
        options.dtype = dtypes[d][0];
        options.kv_dtype = dtypes[d][1];
        options.allreduce_dtype = dtypes[d][2];
        options.max_rows = 128;
        options.overlap_rows = 1000;
        int launches, divided;
        int n = run_two_passes(&options, _i, whole, &launches);
        ck_assert_int_eq(emulator_gemm_multiprocessors(), 0);
        options.overlap_rows = 50;
        ck_assert_int_eq(run_two_passes(&options, _i, micro, &divided), n);
        ck_assert_int_eq(emulator_gemm_multiprocessors(), 3); // of 4: one is left to the sums
        ck_assert_int_eq(emulator_nccl_blocks(), 1);
        ck_assert_int_gt(divided, launches);
        for (int i = 0; i < n; i++)
            ck_assert_msg(memcmp(&whole[i], &micro[i], sizeof whole[i]) == 0,
                          "%s, number %d of %d: %g whole, %g in micro-batches", options.dtype, i, n, (double)whole[i],
                          (double)micro[i]);
    }
}
END_TEST

// The first call of a kind connects the ranks. A communicator that does not block the host passes each call to a
// thread. Both take longer than a decode step.
START_TEST(passes_neither_connect_ranks_nor_wait_for_a_call)
{
    static float logits[2 * VOCAB];
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    ranks_open(&ranks, &options, 4);
    const int connections = emulator_nccl_connections(), later = emulator_nccl_issued_later();
    ck_assert_int_gt(connections, 0);
    const int pageable = emulator_pageable_reads();
    prefill(&ranks, f, logits);
    for (int step = 0; step < STEPS; step++)
        decode(&ranks, f, step, logits);
    ck_assert_int_eq(emulator_nccl_connections(), connections);
    ck_assert_int_eq(emulator_nccl_issued_later(), later);
    ck_assert_int_eq(emulator_pageable_reads(), pageable);
    ranks_close(&ranks);
    free(f);
}
END_TEST

// The other ranks replay the pass while one runs it eagerly. The bits are the same, because all sum padded rows.
START_TEST(a_capture_that_fails_on_one_rank_changes_nothing)
{
    static float all[STEPS][2 * VOCAB], some[STEPS][2 * VOCAB];
    struct model_options options = options_for(model_dir);
    struct forward *f = calloc(1, sizeof *f);
    int launches[2];
    for (int failing = 0; failing < 2; failing++) {
        struct ranks ranks;
        ranks_open(&ranks, &options, 4);
        prefill(&ranks, f, some[0]);
        emulator_fail_graph(failing ? 2 : 0);
        const int before = emulator_graph_launches();
        for (int step = 0; step < STEPS; step++)
            decode(&ranks, f, step, failing ? some[step] : all[step]);
        launches[failing] = emulator_graph_launches() - before;
        ranks_close(&ranks);
    }
    ck_assert_int_eq(launches[0], 4 * (STEPS - 1)); // the first pass loads the kernels
    ck_assert_int_eq(launches[1], 3 * (STEPS - 1));
    ck_assert_mem_eq(some, all, sizeof all);
    free(f);
}
END_TEST

// The host runs ahead of the devices until a launch blocks, with the comm locked.
START_TEST(a_device_that_hangs_is_noticed_though_its_queue_is_full)
{
    static const int32_t tokens[20];
    enum { MORE_LAYERS = 8, QUEUE = 40 };
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = VOCAB;
    spec.n_layers = MORE_LAYERS;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir);
    const int in_flight = nccl_sums_in_flight;
    nccl_sums_in_flight = 2;
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    struct forward_result result;
    ranks_open(&ranks, &options, 2);
    for (int r = 0; r < 2; r++)
        ranks.comm[r]->limit_ms = 500;
    emulator_set_launch_queue(QUEUE);
    emulator_spin_nccl(true);
    forward_start(f, 2);
    forward_add(f, 0, 0, tokens, NULL, 20, LOGITS_LAST);
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "a step has not ended on the GPU in 0.5 s") != NULL, "%s", status_message());
    emulator_spin_nccl(false);
    emulator_set_launch_queue(1024);
    ranks_close(&ranks);
    nccl_sums_in_flight = in_flight;
    free(f);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(the_kv_cache_fits_on_every_rank)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    options.n_kv_blocks = 0;
    options.gpu_memory_utilization = 0.5;
    ranks_open(&ranks, &options, 2);
    int blocks = model_kv_blocks(ranks.model[0]);
    ck_assert_int_gt(blocks, 64);
    ck_assert_int_eq(blocks, model_kv_blocks(ranks.model[1]));
    ranks_close(&ranks);

    options.gpu_memory_utilization = 1e-9; // less than the weights use
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "no room for 1 KV blocks"));
    ck_assert_ptr_nonnull(strstr(status_message(), "a higher gpu-memory-utilization"));

    options.n_kv_blocks = 100000000;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 1), STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "no room for 100000000 KV blocks"));
}
END_TEST

// In a decode pass, or in one of two micro-batches. The group closes nevertheless.
START_TEST(a_failed_rank_is_reported_by_all)
{
    static const int32_t tokens[100];
    struct model_options options = options_for(model_dir);
    options.max_rows = 128;
    options.overlap_rows = 50;
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    static float logits[2 * VOCAB];
    ranks_open(&ranks, &options, 2);
    prefill(&ranks, f, logits);
    const int graphs = emulator_graph_launches();
    for (int step = 0; step < STEPS; step++)
        decode(&ranks, f, step, logits);
    ck_assert_int_gt(emulator_graph_launches(), graphs); // which the abort waits for
    emulator_fail_rank(1);
    struct forward_result result;
    forward_start(f, 2);
    forward_add(f, 0, PROMPT, tokens, NULL, _i ? 100 : 1, LOGITS_LAST);
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "NCCL: ") != NULL, "%s", status_message());
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_UNAVAILABLE); // also later
    emulator_fail_rank(-1);
    ranks_close(&ranks);
    free(f);
}
END_TEST

// ---- a rank of an engine that hangs ----

enum { ENGINES = 4, HANGS = 2 };

struct rank {
    pthread_t thread;
    struct comm *comm;
    const char *dir;
    // The GPUs that the rank sees. n_gpus 0: all.
    int first_gpu, n_gpus;
    struct engine *engine;
    enum status status;
    // A copy, because each thread has its own sentence.
    char message[1024];
};

static void *open_engine(void *arg)
{
    struct rank *r = arg;
    struct model_options options = options_for(r->dir);
    if (r->n_gpus) emulator_show_devices(r->first_gpu, r->n_gpus);
    r->status = engine_open(&options, r->comm, &r->engine);
    snprintf(r->message, sizeof r->message, "%s", status_message());
    return NULL;
}

static void *close_engine(void *arg)
{
    struct rank *r = arg;
    engine_close(r->engine);
    return NULL;
}

static void *step_once(void *arg)
{
    struct rank *r = arg;
    r->comm->limit_ms = r->comm->rank == 0 ? 500 : 1500; // as engine_set_step_timeout does, without the watchdog
    if (r->comm->rank == 0) {
        const struct ragged_batch batch = ragged_warm_up_batch();
        struct forward_result result;
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

START_TEST(a_hung_rank_is_named)
{
    struct rank ranks[ENGINES] = {0};
    struct comm *comms[ENGINES];
    emulator_set_devices(ENGINES);
    ck_assert_int_eq(comm_open_threads(ENGINES, comms), STATUS_OK);
    for (int r = 0; r < ENGINES; r++) {
        ranks[r].comm = comms[r];
        ranks[r].dir = model_dir;
    }
    on_all(ranks, open_engine);
    for (int r = 0; r < ENGINES; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    emulator_hang_rank(HANGS);
    on_all(ranks, step_once);
    ck_assert_int_eq(ranks[0].status, STATUS_UNAVAILABLE);
    static const char *const says[] = {"rank 0 on ",
                                       ": a step has not ended on the GPU in 0.5 s: all 4 ranks answer, the ",
                                       "others wait for ", "rank 2 (host "};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        ck_assert_msg(strstr(ranks[0].message, says[i]) != NULL, "%s: %s", says[i], ranks[0].message);
    for (int r = 0; r < ENGINES; r++)
        comms[r]->ops->close(comms[r]);
}
END_TEST

// One rank never connects its GPU. The others give up, and memory that NCCL's thread still uses is not freed.
START_TEST(ranks_that_do_not_all_connect_fail_within_the_limit)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    const int limit_ms = nccl_connect_limit_ms;
    nccl_connect_limit_ms = 300;
    emulator_hang_rank(1);
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "connecting the GPUs: not done by all ranks in 0.3 s") != NULL, "%s",
                  status_message());
    emulator_hang_rank(-1); // the abandoned threads connect and close
    for (int ms = 0; emulator_memory_used() && ms < 60000; ms++)
        usleep(1000);
    ck_assert_uint_eq(emulator_memory_used(), 0); // including the partial sums, which the threads used meanwhile
    nccl_connect_limit_ms = limit_ms;
}
END_TEST

// Where GPUs cannot reach each other, the kernels of the first sums never end, and freeing memory waits for them: the
// communicators are aborted first.
START_TEST(a_start_whose_first_sums_never_end_fails_within_the_limit)
{
    struct model_options options = options_for(model_dir);
    struct ranks ranks;
    const int limit_ms = nccl_connect_limit_ms;
    nccl_connect_limit_ms = 300;
    emulator_spin_nccl(true);
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "connecting the GPUs: not done by all ranks in 0.3 s") != NULL, "%s",
                  status_message());
    ck_assert_uint_eq(emulator_memory_used(), 0); // no thread was left to free it later
    emulator_spin_nccl(false);
    nccl_connect_limit_ms = limit_ms;
}
END_TEST

// ---- the GPU of each rank ----

// Rank r sees GPUs first[r] .. first[r] + n - 1 of 4.
static void open_engines(struct rank ranks[ENGINES], struct comm *comms[ENGINES], const char *dir, const int first[],
                         int n)
{
    ck_assert_int_eq(comm_open_threads(ENGINES, comms), STATUS_OK);
    for (int r = 0; r < ENGINES; r++)
        ranks[r] = (struct rank){.comm = comms[r], .dir = dir, .first_gpu = first[r], .n_gpus = n};
    on_all(ranks, open_engine);
}

static void close_engines(struct rank ranks[ENGINES], struct comm *comms[ENGINES])
{
    if (ranks[0].status == STATUS_OK) on_all(ranks, close_engine);
    for (int r = 0; r < ENGINES; r++)
        comms[r]->ops->close(comms[r]);
}

START_TEST(every_rank_uses_its_own_gpu)
{
    static const int sees_all[ENGINES] = {0, 0, 0, 0}, sees_one[ENGINES] = {2, 0, 3, 1};
    struct rank ranks[ENGINES];
    struct comm *comms[ENGINES];
    emulator_set_devices(ENGINES);
    for (int one = 0; one < 2; one++) {
        open_engines(ranks, comms, model_dir, one ? sees_one : sees_all, one ? 1 : ENGINES);
        for (int r = 0; r < ENGINES; r++)
            ck_assert_msg(ranks[r].status == STATUS_OK, "%s", ranks[r].message);
        for (int gpu = 0; gpu < ENGINES; gpu++)
            ck_assert_uint_gt(emulator_memory_used_on(gpu), emulator_memory_used() / ENGINES / 2);
        close_engines(ranks, comms);
    }
}
END_TEST

// One GPU for two ranks by mistake, and fewer GPUs than ranks.
START_TEST(ranks_that_would_share_a_gpu_are_refused)
{
    static const int same_one[ENGINES] = {0, 1, 1, 2}, two_each[ENGINES] = {0, 0, 0, 0};
    static const char *const says[] = {": 1 GPU seen, all in use by lower ranks (the first by rank 1)",
                                       ": 2 GPUs seen, all in use by lower ranks (the first by rank 0)"};
    struct rank ranks[ENGINES];
    struct comm *comms[ENGINES];
    emulator_set_devices(ENGINES);
    for (int two = 0; two < 2; two++) {
        open_engines(ranks, comms, model_dir, two ? two_each : same_one, two ? 2 : 1);
        for (int r = 0; r < ENGINES; r++)
            ck_assert_int_eq(ranks[r].status, STATUS_INVALID);
        ck_assert_msg(strncmp(ranks[2].message, "rank 2 on ", 10) == 0, "%s", ranks[2].message);
        ck_assert_msg(strstr(ranks[2].message, says[two]) != NULL, "%s", ranks[2].message);
        close_engines(ranks, comms);
    }
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

// ---- device memory --------------------------------------------------------------------------------------------------

// Otherwise the other ranks would wait in the sums of the warm-up, and report that a device or a link hangs.
START_TEST(one_gpu_without_room_for_the_kv_cache_ends_all_ranks)
{
    static const int sees_all[ENGINES] = {0};
    static const char *const says[] = {": no room for 64 KV blocks of ", " MiB for 64 KV blocks, GPU 1 has "};
    enum { SHORT_OF = 1 };
    struct rank ranks[ENGINES];
    struct comm *comms[ENGINES];
    emulator_set_devices(ENGINES);
    open_engines(ranks, comms, model_dir, sees_all, ENGINES);
    ck_assert_msg(ranks[SHORT_OF].status == STATUS_OK, "%s", ranks[SHORT_OF].message);
    const struct model *model = engine_model(ranks[SHORT_OF].engine);
    const size_t block = model_kv_bytes(model) / (size_t)model_kv_blocks(model);
    const size_t used = emulator_memory_used_on(SHORT_OF);
    close_engines(ranks, comms);
    // Less memory than the blocks need, or enough for them but not for the padding block.
    emulator_set_memory_of(SHORT_OF, used - (_i ? block / 2 : 2 * block));
    open_engines(ranks, comms, model_dir, sees_all, ENGINES);
    for (int r = 0; r < ENGINES; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_EXHAUSTED);
    ck_assert_msg(strncmp(ranks[SHORT_OF].message, "rank 1 on ", 10) == 0, "%s", ranks[SHORT_OF].message);
    ck_assert_msg(strstr(ranks[SHORT_OF].message, says[_i]) != NULL, "%s", ranks[SHORT_OF].message);
    close_engines(ranks, comms);
    emulator_set_memory_of(SHORT_OF, 0);
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

SUITE("cuda_comm")
{
    log_setup("test", LOG_ERROR);
    NO_FORK();
    FIXTURE(make_model, remove_model);
    LOOP(several_gpus_compute_what_one_does, 2, 3);
    LOOP(several_gpus_compute_what_one_does, 4, 5);
    LOOP(micro_batches_give_the_bits_of_the_whole_batch, 2, 3);
    LOOP(micro_batches_give_the_bits_of_the_whole_batch, 4, 5);
    TEST(partial_sums_lie_in_windows_where_nccl_has_them);
    TEST(a_window_that_cannot_be_registered_is_reported_by_all);
    TEST(other_dtypes_of_sums_are_refused);
    TEST(pipeline_stages_are_refused);
    TEST(passes_neither_connect_ranks_nor_wait_for_a_call);
    TEST(a_capture_that_fails_on_one_rank_changes_nothing);
    TEST(a_device_that_hangs_is_noticed_though_its_queue_is_full);
    TEST(the_kv_cache_fits_on_every_rank);
    TEST(ranks_that_do_not_all_connect_fail_within_the_limit);
    TEST(a_start_whose_first_sums_never_end_fails_within_the_limit);
    TEST(every_rank_uses_its_own_gpu);
    TEST(ranks_that_would_share_a_gpu_are_refused);
    LOOP(one_gpu_without_room_for_the_kv_cache_ends_all_ranks, 0, 2);
    LOOP(a_failed_rank_is_reported_by_all, 0, 2);
    TEST(a_hung_rank_is_named);
}
