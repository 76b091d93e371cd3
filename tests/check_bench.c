// SPDX-License-Identifier: Apache-2.0
// The libraries of bench/: the work of a pass, passes, rounds, the machine probe, packing plans, the report. Speeds are
// not asserted.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/dispatch.h"
#include "bench/memory.h"
#include "bench/passes.h"
#include "bench/prepack.h"
#include "bench/report.h"
#include "bench/rounds.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "tests/heap.h"
#include "tests/suite.h"

// ---- work -----------------------------------------------------------------------------------------------------------

START_TEST(the_work_of_a_pass_equals_a_hand_count)
{
    // 2 layers of q [6 x 4], k and v [2 x 4], o [4 x 6], gate, up and down of 5; head 10 x 4.
    const struct model_config config = {
        .n_layers = 2, .hidden = 4, .intermediate = 5, .n_heads = 3, .n_kv_heads = 1, .head_size = 2, .vocab_size = 10};
    struct work_model model = work_model_of(&config, 2, 100);
    const double layers = 2 * (6 * 4 + 2 * 2 * 4 + 4 * 6 + 3 * 5 * 4), head = 40;
    ck_assert_double_eq(model.layer_weights, layers);
    // 3 rows of a new sequence, 2 rows after 7 entries; logits of one row.
    static const int32_t row_start[] = {0, 3, 5}, kv_len[] = {0, 7};
    struct ragged_batch batch = {.n_rows = 5, .n_seqs = 2, .row_start = row_start, .kv_len = kv_len, .n_logit_rows = 1};
    struct work work = work_of(&model, &batch);
    ck_assert_double_eq_tol(work.linear_gflop * 1e9, 2 * (layers * 5 + head), 1e-6);
    double pairs = (1 + 2 + 3) + (8 + 9); // attention pairs; q k and p v each need 2 * D * H * layers
    ck_assert_double_eq_tol(work.attention_gflop * 1e9, pairs * 2 * (2 * 2 * 3) * 2, 1e-6);
    ck_assert_double_eq_tol(work.gbytes * 1e9, (layers + head) * 2 + 7 * 100, 1e-6);
    batch.n_logit_rows = 0; // without logits the head is not read
    work = work_of(&model, &batch);
    ck_assert_double_eq_tol(work.gbytes * 1e9, layers * 2 + 7 * 100, 1e-6);
}
END_TEST

// ---- passes ---------------------------------------------------------------------------------------------------------

static struct engine *open_shape(const char *path, const struct passes_limits *limits, struct comm **comm_p)
{
    const struct model_options options = {.dir = path,
                                          .dummy = true,
                                          .backend = "cpu",
                                          .dtype = "auto",
                                          .threads = 1,
                                          .max_rows = limits->rows,
                                          .max_seqs = limits->seqs,
                                          .max_context = limits->context,
                                          .n_kv_blocks = limits->kv_blocks};
    struct engine *engine;
    ck_assert_int_eq(comm_open_self(comm_p), STATUS_OK);
    ck_assert_msg(engine_open(&options, *comm_p, &engine) == STATUS_OK, "%s", status_message());
    return engine;
}

static struct engine *open_engine(const struct passes_limits *limits, struct comm **comm_p)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *path = mem_format("%s/tests/data/shapes/tiny.json", source ? source : ".");
    struct engine *engine = open_shape(path, limits, comm_p);
    free(path);
    return engine;
}

// The backend refuses rows, KV entries and blocks that do not fit, so a pass that runs is within its limits.
START_TEST(prompts_are_packed_and_cut_to_the_budget)
{
    enum { PROMPTS = 3, TOKENS = 50, STEPS = 4 };
    static const int budgets[] = {1024, 150, 64, 7};
    struct work whole = {0};
    for (int i = 0; i < 4; i++) {
        const struct passes_limits limits = {budgets[i], PROMPTS, TOKENS + STEPS, PROMPTS * 4};
        struct comm *comm;
        struct engine *engine = open_engine(&limits, &comm);
        const struct work_model model = work_model_of(model_get_config(engine_model(engine)), 2, 256);
        struct passes *passes = passes_create(engine, &limits, &model);
        passes_set_entries(passes, TOKENS + STEPS);
        struct work work = {0}, decode = {0};
        double seconds = 0;
        ck_assert_msg(passes_prefill(passes, 0, PROMPTS, TOKENS, &work, &seconds) == STATUS_OK, "%s", status_message());
        ck_assert(seconds > 0);
        if (i == 0) whole = work;
        // Chunks have the same attention pairs as the whole prompt. Only the weights are read more often.
        ck_assert_double_eq_tol(work.linear_gflop, whole.linear_gflop, 1e-12);
        ck_assert_double_eq_tol(work.attention_gflop, whole.attention_gflop, 1e-12);
        int passes_needed = (PROMPTS * TOKENS + budgets[i] - 1) / budgets[i];
        ck_assert_double_ge(work.gbytes, passes_needed * model.layer_weights * 2 / 1e9);
        ck_assert_msg(passes_decode(passes, PROMPTS, TOKENS, STEPS, &decode, NULL) == STATUS_OK, "%s",
                      status_message());
        double weights = model.layer_weights + model.head_weights;
        ck_assert_double_eq_tol(decode.linear_gflop * 1e9, 2 * weights * PROMPTS * STEPS, 1e-3);
        double pairs = PROMPTS * (51 + 52 + 53 + 54);
        ck_assert_double_eq_tol(decode.attention_gflop * 1e9, pairs * model.attention_flop, 1e-3);
        passes_free(passes);
        engine_close(engine);
        comm->ops->close(comm);
    }
}
END_TEST

// ---- rounds ---------------------------------------------------------------------------------------------------------

struct script {
    const double *seconds;
    int n, at;
    int *order, *n_order, mark; // of the runs
};

static enum status player_run(struct contender *self, double *seconds_p)
{
    struct script *s = self->context;
    s->order[(*s->n_order)++] = s->mark;
    if (s->at == s->n) return status_fail(STATUS_UNAVAILABLE, "the script is over");
    *seconds_p = s->seconds[s->at++];
    self->gflop = 1;
    return STATUS_OK;
}

START_TEST(the_median_round_is_reported_and_contenders_alternate)
{
    // The first run warms up. Contender b repeats in each round until 10 ms have passed.
    static const double a[] = {9, 3, 1, 2}, b[] = {9, 0.004, 0.008, 0.02, 0.02};
    static const int expected[] = {1, 2, 1, 2, 2, 1, 2, 1, 2};
    int order[32], n_order = 0;
    struct script first = {a, 4, 0, order, &n_order, 1}, second = {b, 5, 0, order, &n_order, 2};
    struct contender contenders[2] = {{.run = player_run, .context = &first}, {.run = player_run, .context = &second}};
    struct measurement m[2];
    struct rounds_readings readings;
    const struct rounds rounds = {.rounds = 3, .min_ms = 10};
    ck_assert_int_eq(rounds_run(&rounds, contenders, 2, m, &readings), STATUS_OK);
    ck_assert_double_eq_tol(m[0].seconds, 2, 1e-9);
    ck_assert_double_eq_tol(m[0].spread, (3 - 1) / 2., 1e-9);
    ck_assert_double_eq_tol(m[1].seconds, 0.02, 1e-9); // median of 0.006, 0.02, 0.02
    ck_assert_int_eq(n_order, 9);
    ck_assert_mem_eq(order, expected, sizeof expected);
    ck_assert_int_eq(readings.n, 0);
    ck_assert(isnan(m[0].share));
    ck_assert(isnan(readings.mean.gflops));
    // A contender that fails ends the rounds.
    ck_assert_int_eq(rounds_run(&rounds, contenders, 2, m, &readings), STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(a_probe_reads_every_type_and_takes_no_memory_here)
{
    struct probe *probe;
    ck_assert_int_eq(probe_open(2, 5, &probe), STATUS_OK);
    double before = memory_peak_mb(getpid());
    for (int type = 0; type < PROBE_TYPES; type++) {
        struct probe_reading reading;
        ck_assert_msg(probe_read(probe, (enum probe_type)type, &reading) == STATUS_OK, "%s", status_message());
        ck_assert(reading.gflops > 0);
        ck_assert(reading.gbytes_per_s > 0);
        printf("%s: %.3g GFLOP/s, %.3g GB/s\n", reading.instruction, reading.gflops, reading.gbytes_per_s);
    }
    ck_assert(before > 0);
    ck_assert_double_lt(memory_peak_mb(getpid()) - before, 100); // the probe streams through 256 MiB or more

    static const double seconds[] = {1, 1, 1, 1};
    int order[32], n_order = 0;
    struct script script = {seconds, 3, 0, order, &n_order, 1};
    struct contender contender = {.run = player_run, .context = &script};
    struct measurement m;
    struct rounds_readings readings;
    const struct rounds rounds = {.probe = probe, .rounds = 2};
    ck_assert_int_eq(rounds_run(&rounds, &contender, 1, &m, &readings), STATUS_OK);
    ck_assert_int_eq(readings.n, 3); // before the first, between and after the last round
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += readings.all[i].gflops;
    ck_assert_double_eq_tol(readings.mean.gflops, sum / 3, 1e-9 * sum);
    // 10^9 operations in a second: the share is 1 / reading, between the shares of the extreme readings.
    ck_assert(!m.memory_bound);
    ck_assert(m.share > 0);
    probe_close(probe);
}
END_TEST

// ---- prepacking -----------------------------------------------------------------------------------------------------

static void check_plan(enum prepack_policy policy, const int *rows, const int *prompts, const int *groups, int n)
{
    static const int32_t length[] = {3, 9, 5, 2, 4};
    struct prepack_plan plan = prepack_plan_make(policy, length, 5, 2, 8);
    int seen[5] = {0}, first = 0, sum = 0;
    ck_assert_int_eq(plan.n_passes, n);
    for (int i = 0; i < n; i++) {
        const struct prepack_pass *pass = &plan.passes[i];
        int own = 0;
        ck_assert_int_eq(pass->first, first);
        ck_assert_int_eq(pass->n, prompts[i]);
        ck_assert_int_eq(pass->rows, rows[i]);
        ck_assert_int_eq(pass->group, groups[i]);
        for (int p = first; p < first + pass->n; p++) {
            seen[plan.order[p]]++;
            own += length[plan.order[p]];
        }
        ck_assert_int_eq(pass->rows, pass->rows_each ? pass->rows_each * pass->n : own);
        first += pass->n;
        sum += pass->rows;
    }
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(seen[i], 1);
    ck_assert_int_eq(plan.rows, sum);
    ck_assert_int_eq(plan.n_groups, groups[n - 1] + 1);
    prepack_plan_free(&plan);
}

START_TEST(plans_equal_hand_made_ones)
{
    // Batches of two: (3 9) (5 2) (4). Sorted by length: (2 3) (4 5) (9).
    check_plan(PREPACK_PADDED, (int[]){18, 10, 4}, (int[]){2, 2, 1}, (int[]){0, 1, 2}, 3);
    check_plan(PREPACK_LENGTH_ORDERED, (int[]){6, 10, 9}, (int[]){2, 2, 1}, (int[]){0, 1, 2}, 3);
    // Bins of 8 rows, or of 9 with the prompt of 9: 9 | 3, 5 2, 4. Over all prompts: 9 | 5 4 | 3 2.
    check_plan(PREPACK_BATCH, (int[]){9, 3, 7, 4}, (int[]){1, 1, 2, 1}, (int[]){0, 0, 1, 2}, 4);
    check_plan(PREPACK_DATASET, (int[]){9, 9, 5}, (int[]){1, 2, 2}, (int[]){0, 1, 2}, 3);
    check_plan(PREPACK_NONE, (int[]){3, 9, 5, 2, 4}, (int[]){1, 1, 1, 1, 1}, (int[]){0, 1, 2, 3, 4}, 5);
}
END_TEST

// The reference of the policy `dataset`: every bin is exactly full, whatever the prompts.
static void check_full_bins(int capacity, const int *length, const int *prompt, const int *first, int n_bins)
{
    int32_t own[] = {3, 9, 5, 2, 4}, tokens[9] = {0};
    const int32_t *data[] = {tokens, tokens + 1, tokens + 2, tokens + 3, tokens + 4};
    const struct prompts prompts = {.n = 5, .length = own, .longest = 9, .tokens = 23, .data = data};
    struct prompts cut;
    struct prepack_plan plan = prepack_plan_full_bins(&prompts, capacity, &cut);
    ck_assert_int_eq(plan.n_passes, n_bins);
    ck_assert_int_eq(plan.n_groups, n_bins);
    ck_assert_int_eq(plan.n_prompts, first[n_bins]);
    ck_assert_int_eq(cut.n, first[n_bins]);
    ck_assert_int_eq(cut.tokens, n_bins * capacity);
    ck_assert_int_eq(plan.rows, n_bins * capacity);
    for (int b = 0; b < n_bins; b++) {
        ck_assert_int_eq(plan.passes[b].first, first[b]);
        ck_assert_int_eq(plan.passes[b].n, first[b + 1] - first[b]);
        ck_assert_int_eq(plan.passes[b].rows, capacity);
        ck_assert_int_eq(plan.passes[b].group, b);
    }
    for (int i = 0; i < cut.n; i++) {
        ck_assert_int_eq(plan.order[i], i);
        ck_assert_int_eq(cut.length[i], length[i]);
        ck_assert_ptr_eq(cut.data[i], data[prompt[i]]);
    }
    prepack_plan_free(&plan);
    prompts_free(&cut);
}

START_TEST(full_bins_have_no_room_and_cut_the_last_prompt)
{
    check_full_bins(10, (int[]){3, 7, 5, 2, 3, 3, 7}, (int[]){0, 1, 2, 3, 4, 0, 1}, (int[]){0, 2, 5, 7}, 3);
    // More room than tokens: the prompts start over.
    check_full_bins(30, (int[]){3, 9, 5, 2, 4, 3, 4}, (int[]){0, 1, 2, 3, 4, 0, 1}, (int[]){0, 7}, 1);
    check_full_bins(23, (int[]){3, 9, 5, 2, 4}, (int[]){0, 1, 2, 3, 4}, (int[]){0, 5}, 1);
}
END_TEST

START_TEST(memory_is_computed_from_rows_prompts_and_blocks)
{
    // Blocks of 16 entries: 1 + 3 + 1 + 2 = 7, padded 4 x 3.
    int32_t length[] = {5, 40, 16, 17};
    struct prompts prompts = {.n = 4, .length = length, .longest = 40, .tokens = 78};
    const struct prepack_memory memory = {.row_bytes = 10, .logit_bytes = 1000, .block_bytes = 10000};
    struct prepack_plan padded = prepack_plan_make(PREPACK_PADDED, length, 4, 4, 64);
    struct prepack_need need = prepack_plan_need(&padded, length, &memory);
    ck_assert_double_eq(need.kv_bytes, 12 * 10000);
    ck_assert_double_eq(need.pass_bytes, 4 * 40 * 10 + 4 * 1000);
    // 40 17 5 | 16 in bins of 64: the KV blocks of both bins are held at the end, activations only for one pass.
    struct prepack_plan batch = prepack_plan_make(PREPACK_BATCH, length, 4, 4, 64);
    ck_assert_int_eq(batch.n_passes, 2);
    need = prepack_group_need(&batch, length, 0, &memory);
    ck_assert_double_eq(need.kv_bytes, 7 * 10000);
    ck_assert_int_eq(need.rows, 62);
    const double pass = 62 * 10 + 3 * 1000;
    ck_assert_double_eq(need.pass_bytes, pass);
    ck_assert_int_eq(prepack_largest_batch(PREPACK_BATCH, &prompts, 64, 7 * 10000 + pass, &memory), 4);
    ck_assert_int_eq(prepack_largest_batch(PREPACK_BATCH, &prompts, 64, 7 * 10000 + pass - 1, &memory), 3);
    ck_assert_int_eq(prepack_largest_batch(PREPACK_PADDED, &prompts, 64, 12 * 10000 + 1600 + 4000, &memory), 4);
    ck_assert_int_eq(prepack_largest_batch(PREPACK_PADDED, &prompts, 64, 100, &memory), 0);
    prepack_plan_free(&padded);
    prepack_plan_free(&batch);
}
END_TEST

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

// The bytes that an engine with exactly these limits allocates, weights included.
static double engine_bytes(const char *shape, const struct passes_limits *limits, struct prepack_memory *memory_p)
{
    struct comm *comm;
    double before = (double)heap_bytes();
    struct engine *engine = open_shape(shape, limits, &comm);
    double bytes = (double)heap_bytes() - before;
    if (memory_p) *memory_p = prepack_memory_of(engine_model(engine));
    engine_close(engine);
    comm->ops->close(comm);
    return bytes;
}

// The computed memory of a batch equals the memory of an engine opened for it minus the memory of the smallest engine.
START_TEST(computed_memory_equals_what_an_engine_allocates)
{
    char shape[] = "/tmp/forepack-shape-XXXXXX";
    write_file(shape, "{\"model_type\": \"llama\", \"vocab_size\": 20000, \"hidden_size\": 512, "
                      "\"intermediate_size\": 1024, \"num_hidden_layers\": 3, \"num_attention_heads\": 8, "
                      "\"num_key_value_heads\": 4, \"head_dim\": 64, \"max_position_embeddings\": 512, "
                      "\"rms_norm_eps\": 1e-5}");
    const int32_t length[] = {30, 100, 17, 64, 90, 5, 33, 16};
    enum { N = 8, LONGEST = 100 };
    const struct passes_limits least = {1, 1, LONGEST, 1}, most = {N * LONGEST, N, LONGEST, 7 * N};
    struct prepack_memory memory;
    engine_bytes(shape, &most, &memory); // as in bench prepack, by the engine of the largest need
    double smallest = engine_bytes(shape, &least, NULL);
    static const enum prepack_policy policies[] = {PREPACK_PADDED, PREPACK_BATCH};
    for (int i = 0; i < 2; i++) {
        struct prepack_plan plan = prepack_plan_make(policies[i], length, N, N, 128);
        struct prepack_need need = prepack_plan_need(&plan, length, &memory);
        const struct passes_limits limits = {need.rows, need.prompts, LONGEST, need.kv_blocks};
        double made = engine_bytes(shape, &limits, NULL) - smallest;
        double counted = need.kv_bytes + need.pass_bytes;
        counted -= memory.row_bytes + memory.logit_bytes + memory.block_bytes; // also in the smallest engine
        // Scratch of attention, RoPE angles and row padding are not computed.
        ck_assert_double_ge(made, counted);
        ck_assert_double_le(made, 1.1 * counted);
        prepack_plan_free(&plan);
    }
    unlink(shape);
}
END_TEST

// All policies give the same logits on the engine, bit for bit. Padding rows are computed too.
START_TEST(every_policy_computes_its_rows_and_gives_the_same_logits)
{
    int32_t length[] = {3, 90, 17, 40, 64, 1, 33, 16, 200, 5};
    enum { N = 10, BATCH = 4, BUDGET = 128, ROUNDS = 2 };
    struct prompts prompts = {.n = N, .length = length, .longest = 200, .tokens = 469};
    const struct passes_limits limits = {4 * 200, N, 200, 4 * 13};
    struct comm *comm;
    struct engine *engine = open_engine(&limits, &comm);
    const struct model_config *config = model_get_config(engine_model(engine));
    const struct work_model model = work_model_of(config, 2, 256);
    struct passes *passes = passes_create(engine, &limits, &model);
    prompts_make_up(&prompts, config->vocab_size);
    struct prepack_run runs[PREPACK_POLICIES];
    for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
        struct prepack_run *run = &runs[policy];
        struct prepack_plan plan = prepack_plan_make(policy, length, N, BATCH, BUDGET);
        prepack_run_init(run, &plan, &prompts, ROUNDS);
        while (run->rounds_done < ROUNDS)
            ck_assert_msg(prepack_run_group(run, passes, config->vocab_size) == STATUS_OK, "%s", status_message());
        double rows = (double)plan.rows;
        ck_assert_int_eq(run->rows_done, plan.rows * ROUNDS);
        ck_assert_double_eq_tol(run->work.linear_gflop * 1e9,
                                2 * ROUNDS * (model.layer_weights * rows + model.head_weights * N), 1);
        double sum = 0;
        for (int i = 0; i < run->n_batches * ROUNDS; i++)
            sum += run->batch_s[i];
        ck_assert_double_eq_tol(sum, run->total_s, 1e-9);
        for (int p = 0; p < N; p++) {
            ck_assert_uint_eq(run->digest[p], runs[0].digest[p]);
            ck_assert(run->digest[p] != run->digest[(p + 1) % N]);
            ck_assert(run->ttft_s[p] <= run->waited_ttft_s[p] + 1e-9);
        }
    }
    ck_assert_int_eq(runs[PREPACK_PADDED].plan.rows, 4 * 90 + 4 * 64 + 2 * 200);
    ck_assert_int_eq(runs[PREPACK_PADDED].work.attention_gflop > runs[PREPACK_NONE].work.attention_gflop, 1);
    ck_assert_int_eq(runs[PREPACK_DATASET].plan.rows, 469);
    for (int i = 0; i < PREPACK_POLICIES; i++)
        prepack_run_free(&runs[i]);
    free(prompts.data);
    free(prompts.memory);
    passes_free(passes);
    engine_close(engine);
    comm->ops->close(comm);
}
END_TEST

static void check_lengths_refused(const char *text, const char *sentence)
{
    char path[] = "/tmp/forepack-lengths-XXXXXX";
    struct prompts prompts;
    write_file(path, text);
    ck_assert_int_eq(prompts_read_lengths(path, 0, &prompts), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "said: %s", status_message());
    unlink(path);
}

START_TEST(lengths_are_read_and_bad_lines_are_named)
{
    char path[] = "/tmp/forepack-lengths-XXXXXX";
    struct prompts prompts;
    write_file(path, "7\n\n 12 \n5");
    ck_assert_int_eq(prompts_read_lengths(path, 0, &prompts), STATUS_OK);
    ck_assert_int_eq(prompts.n, 3);
    ck_assert_int_eq(prompts.longest, 12);
    ck_assert_int_eq(prompts.tokens, 24);
    ck_assert_int_eq(prompts.length[2], 5);
    prompts_make_up(&prompts, 10);
    ck_assert_int_eq(prompts_check(&prompts, 12, 10), STATUS_OK);
    ck_assert_int_eq(prompts_check(&prompts, 11, 10), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "prompt 2 has 12 tokens"));
    prompts_free(&prompts);
    ck_assert_int_eq(prompts_read_lengths(path, 2, &prompts), STATUS_OK);
    ck_assert_int_eq(prompts.tokens, 19);
    prompts_free(&prompts);
    unlink(path);
    check_lengths_refused("7\nx\n", ":2: must be one whole number");
    check_lengths_refused("7 8\n", ":1: must be one whole number");
    check_lengths_refused("0\n", "a prompt of 0 tokens");
    check_lengths_refused("99999999999999999999\n", ":1: must be one whole number");
    check_lengths_refused("\n\n", "has no prompts");
    ck_assert_int_eq(prompts_read_lengths("/no/such/file", 0, &prompts), STATUS_INVALID);
}
END_TEST

// ---- the router's core ----------------------------------------------------------------------------------------------

static void record_ended(void *user, int ended)
{
    int *last = user;
    ck_assert_int_ge(ended, *last);
    *last = ended;
}

START_TEST(every_request_of_a_queue_ends)
{
    enum { N = 200 };
    int32_t length[N];
    int ended = 0;
    for (int i = 0; i < N; i++)
        length[i] = 1 + i * 37 % 150;
    struct dispatch_options options = {.length = length,
                                       .n = N,
                                       .token_budget = 256,
                                       .max_seqs = 16,
                                       .workers = 3,
                                       .output_tokens = 4,
                                       .seconds = 1000,
                                       .stepped = record_ended,
                                       .user = &ended};
    struct dispatch_result result;
    log_setup("test", LOG_ERROR);
    ck_assert_int_eq(dispatch_run(&options, &result), STATUS_OK);
    ck_assert_int_eq(result.requests, N);
    ck_assert_int_eq(ended, N);
    ck_assert_int_ge(result.bins, N / 16); // a bin has at most as many prompts as a group has sequences
    ck_assert(result.fill > 0);
    ck_assert(result.fill <= 1);
    ck_assert(result.request_us >= result.submit_us);
    ck_assert(result.dispatch_ms <= result.dispatch_ms_max);
    options.stepped = NULL;
    options.seconds = 0; // the time limit is reached immediately: the queue is abandoned
    ck_assert_int_eq(dispatch_run(&options, &result), STATUS_OK);
    ck_assert_int_eq(result.requests, 0);
}
END_TEST

// ---- report ---------------------------------------------------------------------------------------------------------

// Returns the whole file as a string. The caller frees it.
static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    ck_assert(file != NULL);
    char *text = mem_alloc(1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    text[size] = 0;
    fclose(file);
    return text;
}

static int count_occurrences(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

START_TEST(a_page_has_its_tables_and_plots_in_one_file)
{
    char path[] = "/tmp/forepack-report-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    struct report *report;
    ck_assert_int_eq(report_open(path, "A <b> & \"c\"", &report), STATUS_OK);
    report_paragraph(report, "%d < %d", 1, 2);
    json_t *rows =
        json_pack("[{s:s,s:f,s:i},{s:s,s:n}]", "policy", "<none>", "ms", 1234.5, "rows", 7, "policy", "x", "ms");
    const char *const columns[] = {"policy=Policy", "ms=Time", "rows"};
    report_table(report, rows, columns, 3);
    // Points that are not finite, or not positive on a log axis, are left out: 3 of 5 are drawn.
    const double x[] = {1, 10, 100}, y[] = {0, 0.5, 20}, z[] = {NAN, 3, 1e6};
    const struct report_series series[] = {{"a", x, y, 3}, {"b", x, z, 2}};
    report_lines(report, &(struct report_chart){"t", "x", "y", true, true, series, 2});
    report_lines(report, &(struct report_chart){"nothing", "x", "y", false, false, NULL, 0});
    const char *const groups[] = {"4", "8"}, *const names[] = {"padded", "batch"};
    const double values[] = {3, 4, 1, NAN};
    report_bars(report, &(struct report_bars){"bars", "ms", groups, 2, names, 2, values});
    ck_assert_int_eq(report_close(report), STATUS_OK);
    char *page = read_file(path);
    ck_assert_ptr_nonnull(strstr(page, "<h1>A &lt;b&gt; &amp; &quot;c&quot;</h1>"));
    ck_assert_ptr_nonnull(strstr(page, "<p>1 &lt; 2</p>"));
    ck_assert_ptr_nonnull(
        strstr(page, "<td>&lt;none&gt;</td><td>1234</td><td>7</td>")); // 4 digits or more: rounded to an integer
    ck_assert_ptr_nonnull(strstr(page, "<td>x</td><td></td><td></td>"));
    ck_assert_int_eq(count_occurrences(page, "<svg "), 3);
    ck_assert_int_eq(count_occurrences(page, "</svg>"), 3);
    ck_assert_int_eq(count_occurrences(page, "<circle "), 3);
    ck_assert_int_eq(count_occurrences(page, "</title></rect>"), 3);
    ck_assert_int_eq(count_occurrences(page, "nan") + count_occurrences(page, "inf"), 0);
    ck_assert_int_eq(count_occurrences(page, "http") + count_occurrences(page, "<script"), 0);
    ck_assert_int_eq(count_occurrences(page, "</body></html>"), 1);
    free(page);
    json_decref(rows);
    unlink(path);
    ck_assert_int_eq(report_open("/no/such/place/page.html", "x", &report), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "/no/such/place/page.html"));
}
END_TEST

SUITE("bench")
{
    TIMEOUT(60);
    TEST(the_work_of_a_pass_equals_a_hand_count);
    TEST(prompts_are_packed_and_cut_to_the_budget);
    TEST(the_median_round_is_reported_and_contenders_alternate);
    TEST(a_probe_reads_every_type_and_takes_no_memory_here);
    TEST(plans_equal_hand_made_ones);
    TEST(full_bins_have_no_room_and_cut_the_last_prompt);
    TEST(memory_is_computed_from_rows_prompts_and_blocks);
    TEST(computed_memory_equals_what_an_engine_allocates);
    TEST(every_policy_computes_its_rows_and_gives_the_same_logits);
    TEST(lengths_are_read_and_bad_lines_are_named);
    TEST(every_request_of_a_queue_ends);
    TEST(a_page_has_its_tables_and_plots_in_one_file);
}
