// SPDX-License-Identifier: Apache-2.0
// A group with ranks as threads of one process: it computes what its model computes, and all ranks agree on failures.
// check_engine_mpi repeats this between processes.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "tests/group_ranks.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"

static const char *backend = "cpu";

static struct model_options group_options(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = backend,
                                  .dtype = "f32",
                                  .threads = 1,
                                  .max_rows = 64,
                                  .max_seqs = 32,
                                  .n_kv_blocks = 64};
}

static void *open_rank(void *arg)
{
    struct rank *r = arg;
    struct model_options options = group_options(r->dir);
    if (r->own.backend) options.backend = r->own.backend;
    if (r->own.dtype) options.dtype = r->own.dtype;
    if (r->own.kv_blocks) options.n_kv_blocks = r->own.kv_blocks;
    options.stages = r->own.stages;
    options.stage_layers = r->own.stage_layers;
    options.kv_dtype = r->own.kv_dtype;
    options.allreduce_dtype = r->own.allreduce_dtype;
    r->status = engine_open(&options, r->comm, &r->engine);
    keep_message(r);
    return NULL;
}

static void *follow_rank(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    if (r->status != STATUS_OK) return NULL;
    r->status = engine_follow(r->engine);
    keep_message(r);
    engine_close(r->engine);
    return NULL;
}

// ---- the engine ----

static const int32_t prompt[] = {1, 20, 3, 4, 5, 60, 7, 8, 9, 10, 11, 12, 130, 14, 15, 16, 17, 18};
enum { PROMPT = sizeof prompt / sizeof *prompt };

// Asks a backend that samples for tokens and logits, then for greedy tokens only, for which no rank gathers logits.
static void ask_for_tokens(struct ragged_batch *batch, int step)
{
    static struct row_sampling draws[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        draws[i] = (struct row_sampling){
            .uniform = 0.05 * i, .top_p = 0.9, .inverse_temperature = i % 2 && step < 2 ? 0.5f : 0};
    batch->sampling = draws;
    batch->n_unread_rows = step == 2 ? batch->n_logit_rows : 0;
}

static void steps(struct engine *engine, struct ranks *alone, struct forward *f)
{
    size_t vocab = (size_t)model_get_config(engine_model(engine))->vocab_size;
    for (int step = 0; step < 3; step++) {
        forward_start(f, 2);
        if (step == 0) forward_add(f, 0, 0, prompt, NULL, PROMPT, LOGITS_ALL);
        if (step > 0) forward_add(f, 0, PROMPT + step - 1, prompt + step, NULL, 1, LOGITS_LAST);
        if (step > 0) forward_add(f, 1, 4 * (step - 1), prompt, NULL, 4, LOGITS_LAST);
        if (model_samples(engine_model(engine))) ask_for_tokens(&f->batch, step);
        struct forward_result mine;
        ck_assert_int_eq(engine_forward(engine, &f->batch, &mine), STATUS_OK);
        struct forward_result theirs = ranks_forward(alone, &f->batch);
        size_t rows = (size_t)f->batch.n_logit_rows;
        ck_assert_int_eq(!mine.logits, f->batch.n_unread_rows == f->batch.n_logit_rows);
        ck_assert_int_eq(!mine.tokens, !f->batch.sampling);
        if (mine.logits) ck_assert_mem_eq(mine.logits, theirs.logits, rows * vocab * sizeof(float));
        if (mine.tokens) ck_assert_mem_eq(mine.tokens, theirs.tokens, rows * sizeof *mine.tokens);
        ck_assert_int_eq(engine_check(engine), STATUS_OK);
    }
}

static void *lead_rank(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    ck_assert_int_eq(r->status, STATUS_OK);
    struct ranks alone;
    struct model_options options = group_options(r->dir);
    ranks_open(&alone, &options, r->own.stages ? r->comm->size / r->own.stages : r->comm->size);
    struct forward *f = calloc(1, sizeof *f);
    steps(r->engine, &alone, f);
    free(f);
    ranks_close(&alone);
    engine_close(r->engine);
    return NULL;
}

START_TEST(a_group_computes_what_its_model_computes)
{
    backend = _i ? "reference" : "cpu"; // only the reference backend samples tokens
    struct tiny_model spec = tiny_model_spec("llama3");
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[RANKS] = {{.dir = dir}, {.dir = dir}};
    start_ranks(ranks, 2, lead_rank, follow_rank);
    join_ranks(ranks, 2);
    ck_assert_msg(ranks[1].status == STATUS_OK, "%s", ranks[1].message);
    tiny_model_remove(dir);
    backend = "cpu";
}
END_TEST

static const struct {
    int ranks, stages;
    const char *layers;
} divisions[] = {{2, 2, NULL}, {4, 4, NULL}, {4, 2, NULL}, {6, 3, "1,2,1"}, {8, 4, NULL}};
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

START_TEST(a_group_with_stages_computes_what_its_model_computes)
{
    backend = _i % 2 ? "reference" : "cpu";
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.n_layers = 4;
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[8] = {0};
    const int n = divisions[_i / 2].ranks;
    for (int r = 0; r < n; r++)
        ranks[r] = (struct rank){.dir = dir,
                                 .own = {.stages = divisions[_i / 2].stages, .stage_layers = divisions[_i / 2].layers}};
    start_ranks(ranks, n, lead_rank, follow_rank);
    join_ranks(ranks, n);
    for (int r = 1; r < n; r++)
        ck_assert_msg(ranks[r].status == STATUS_OK, "%s", ranks[r].message);
    tiny_model_remove(dir);
    backend = "cpu";
}
END_TEST

START_TEST(ranks_that_cannot_be_divided_are_refused_once)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[RANKS] = {{0}};
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct rank){.dir = dir, .own = {.stages = 2}};
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_INVALID);
    ck_assert_msg(strstr(ranks[0].message, "pp 2: 3 ranks cannot be divided") != NULL, "%s", ranks[0].message);
    ck_assert_str_eq(ranks[1].message, "");
    ck_assert_str_eq(ranks[2].message, "");
    tiny_model_remove(dir);
}
END_TEST

START_TEST(one_rank_needs_no_followers)
{
    struct tiny_model spec = tiny_model_spec("qwen2");
    char *dir = tiny_model_temp(&spec);
    struct rank rank = {.dir = dir};
    ck_assert_int_eq(comm_open_self(&rank.comm), STATUS_OK);
    lead_rank(&rank);
    rank.comm->ops->close(rank.comm);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(one_failing_rank_fails_all_and_reports_alone)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_heads = spec.n_kv_heads = 6;
    spec.intermediate = 96;
    spec.hidden = 96;
    char *dir = tiny_model_temp(&spec);
    struct rank ranks[RANKS] = {{.dir = dir}, {.dir = "/nowhere/model"}, {.dir = dir}};
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    ck_assert_int_ne(ranks[1].status, STATUS_OK);
    for (int r = 0; r < RANKS; r++)
        ck_assert_msg(ranks[r].status == ranks[1].status, "rank %d: %d", r, ranks[r].status);
    ck_assert_str_eq(ranks[0].message, "");
    ck_assert_ptr_nonnull(strstr(ranks[1].message, "/nowhere/model"));
    ck_assert_str_eq(ranks[2].message, "");

    for (int r = 0; r < RANKS; r++) // a mistake of all ranks is reported once
        ranks[r].dir = "/nowhere/model";
    start_ranks(ranks, RANKS, open_rank, open_rank);
    join_ranks(ranks, RANKS);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(ranks[r].message[0] != 0, r == 0);
    tiny_model_remove(dir);
}
END_TEST

// ---- ranks that differ ----

static void change_nothing(const char *dir)
{
}

static void change_a_weight(const char *dir)
{
    edit_f32(dir, "model.layers.1.mlp.gate_proj.weight", 0, 0.25f);
}

static void change_the_rope(const char *dir)
{
    edit_file(dir, "config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 50000.0");
}

// A stale copy, another config.json, and a host on which `auto` chooses differently. Ranks of equal shapes would run,
// and answer wrongly.
static const struct difference {
    void (*change)(const char *dir); // the second rank's copy of the model
    struct rank_options first, second;
    const char *values, *remedy;
} differences[] = {
    {change_a_weight, {0}, {0}, "model fingerprint ", "copy the same files to all hosts"},
    {change_the_rope, {0}, {0}, "model fingerprint ", "copy the same files to all hosts"},
    {change_nothing,
     {0},
     {.backend = "reference"},
     "backend reference, but cpu on rank 0",
     "choose one with --backend"},
    {change_nothing, {0}, {.dtype = "bf16"}, "dtype bf16, but f32 on rank 0", "choose one with --dtype"},
    {change_nothing,
     {.dtype = "bf16"},
     {.dtype = "bf16", .kv_dtype = "int8"},
     "kv-cache-dtype int8, but bf16 on rank 0",
     "choose one with --kv-cache-dtype"},
    {change_nothing, {0}, {.kv_blocks = 33}, "kv-blocks 33, but 64 on rank 0", "give all ranks the same value"},
    {change_nothing,
     {.stages = 2},
     {0},
     "pp 1, pp-layers not given, but pp 2, pp-layers not given on rank 0",
     "give all"},
    {change_nothing,
     {.stages = 2},
     {.stages = 2, .stage_layers = "1,1"},
     "pp 2, pp-layers 1,1, but pp 2, pp-layers not given on rank 0",
     "give all ranks the same value"},
    {change_nothing, {0}, {.allreduce_dtype = "bf16"}, "allreduce-dtype bf16, but auto on rank 0", "give all ranks"},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };

START_TEST(a_rank_that_differs_from_the_leader_fails_the_group)
{
    const struct difference *d = &differences[_i];
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *copy = tiny_model_temp(&spec), host[65] = "";
    struct rank ranks[RANKS] = {{.dir = dir, .own = d->first}, {.dir = copy, .own = d->second}};
    d->change(copy);
    start_ranks(ranks, 2, open_rank, open_rank);
    join_ranks(ranks, 2);
    for (int r = 0; r < 2; r++)
        ck_assert_int_eq(ranks[r].status, STATUS_INVALID);
    gethostname(host, sizeof host - 1);
    char *names = mem_format("rank 1 on %s: %s", host, d->values);
    ck_assert_str_eq(ranks[0].message, "");
    ck_assert_msg(strstr(ranks[1].message, names) == ranks[1].message, "%s", ranks[1].message);
    ck_assert_msg(strstr(ranks[1].message, d->remedy) != NULL, "%s", ranks[1].message);
    ck_assert_int_eq(status_exit_code(ranks[1].status), 2); // another start would fail in the same way
    free(names);
    tiny_model_remove(copy);
    tiny_model_remove(dir);
}
END_TEST

// ---- a follower that hangs ----

// Opens the model of a follower, which then runs no pass.
static void *open_and_hang(void *arg)
{
    open_rank(arg);
    while (pause() < 0)
        continue;
    return NULL;
}

static atomic_bool stepping;

static void *lead_without_follower(void *arg)
{
    struct rank *r = arg;
    open_rank(r);
    const struct ragged_batch batch = ragged_warm_up_batch();
    struct forward_result result;
    stepping = true;
    engine_forward(r->engine, &batch, &result);
    return NULL;
}

static char *stuck_dir;
static int stuck_stages;

static void lose_a_follower(void)
{
    static struct rank ranks[RANKS];
    for (int r = 0; r < 2; r++)
        ranks[r] = (struct rank){.dir = stuck_dir, .own.stages = stuck_stages};
    start_ranks(ranks, 2, lead_without_follower, open_and_hang);
    while (!stepping || !ranks[0].comm->waits)
        usleep(1000);
    engine_set_step_timeout(ranks[0].engine, 20);
    for (;;)
        pause();
}

START_TEST(a_follower_that_runs_no_pass_is_named)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    stuck_stages = _i ? 2 : 1;
    stuck_dir = tiny_model_temp(&spec);
    char *words = last_words(lose_a_follower);
    ck_assert_msg(strstr(words, "timeout_ms=20 reason=\"all 2 ranks answer, the others wait for rank 1 (host ") != NULL,
                  "%s", words);
    tiny_model_remove(stuck_dir);
}
END_TEST

SUITE("engine")
{
    log_setup("test", LOG_ERROR);
    TIMEOUT(30);
    LOOP(a_group_computes_what_its_model_computes, 0, 2);
    LOOP(a_group_with_stages_computes_what_its_model_computes, 0, 2 * DIVISIONS);
    TEST(ranks_that_cannot_be_divided_are_refused_once);
    TEST(one_rank_needs_no_followers);
    TEST(one_failing_rank_fails_all_and_reports_alone);
    LOOP(a_rank_that_differs_from_the_leader_fails_the_group, 0, DIFFERENCES);
    LOOP(a_follower_that_runs_no_pass_is_named, 0, 2);
}
