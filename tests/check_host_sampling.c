// SPDX-License-Identifier: Apache-2.0
// The host samples exactly the tokens of requests that need it. They have the same bits with any number of threads, and
// other sequences do not wait for them.
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "worker/scheduler_state.h"

enum { REQUESTS = 12, PROMPT = 20, OUTPUT = 24, BLOCKS = 128 };

struct run {
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct scheduler *scheduler;
    struct sampled_token tokens[REQUESTS][OUTPUT];
    int n[REQUESTS];
    int now[REQUESTS]; // tokens of the last step
};

static void take_report(void *arg, const struct step_report *report)
{
    struct run *run = arg;
    memset(run->now, 0, sizeof run->now);
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        ck_assert_int_ne(out->finish, SEQUENCE_ERROR);
        ck_assert(out->n_tokens == 1 || out->n_prompt_logprobs);
        if (!out->n_tokens) continue;
        run->now[out->id] = 1;
        run->tokens[out->id][run->n[out->id]++] = out->tokens[0];
    }
}

// Returns true for two of three requests.
static bool needs_host(int id)
{
    return id % 3 != 0;
}

static void add_sampled(struct run *run, int id, const struct sampling *sampling)
{
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = (7 * id + 3 * i) % 200;
    struct sequence_request request = {.id = (uint64_t)id,
                                       .tokens = tokens,
                                       .n_tokens = PROMPT,
                                       .prompt_tokens = PROMPT,
                                       .sampling = *sampling,
                                       .logprobs_from = 1};
    ck_assert_int_eq(scheduler_add(run->scheduler, &request), STATUS_OK);
}

static struct sampling sampling_of(int id)
{
    struct sampling sampling;
    sampling_defaults(&sampling);
    sampling.max_tokens = OUTPUT;
    sampling.ignore_eos = true;
    sampling.seed = (uint64_t)id;
    if (id % 2) sampling.temperature = 0.9;
    if (id % 3 == 1) sampling.logprobs = 20;
    if (id % 3 == 2) sampling.repetition_penalty = 1.2;
    return sampling;
}

static void add_request(struct run *run, int id)
{
    struct sampling sampling = sampling_of(id);
    add_sampled(run, id, &sampling);
}

static void open_empty_run(struct run *run, const char *backend, int threads, int64_t pace_us)
{
    log_setup("test", LOG_ERROR);
    memset(run, 0, sizeof *run);
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.hidden = 32;
    spec.intermediate = 48;
    spec.n_heads = 2;
    spec.n_kv_heads = 1;
    run->dir = tiny_model_temp(&spec);
    ck_assert_int_eq(comm_open_self(&run->comm), STATUS_OK);
    struct model_options options = {.dir = run->dir,
                                    .backend = backend,
                                    .dtype = "f32",
                                    .kv_dtype = "auto",
                                    .threads = threads,
                                    .max_rows = 64,
                                    .max_seqs = REQUESTS,
                                    .max_logit_rows = 64,
                                    .n_kv_blocks = BLOCKS};
    enum status status = engine_open(&options, run->comm, &run->engine);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    struct scheduler_limits limits = {.token_budget = 64,
                                      .max_seqs = REQUESTS,
                                      .context_tokens = PROMPT + OUTPUT,
                                      .kv_blocks = BLOCKS,
                                      .pace_us = pace_us};
    status = scheduler_create(run->engine, &limits, take_report, run, &run->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void open_run(struct run *run, const char *backend, int threads, int64_t pace_us)
{
    open_empty_run(run, backend, threads, pace_us);
    for (int id = 0; id < REQUESTS; id++)
        add_request(run, id);
}

static void step(struct run *run)
{
    enum status status = scheduler_step(run->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void finish_run(struct run *run)
{
    while (scheduler_busy(run->scheduler))
        step(run);
}

static void close_run(struct run *run)
{
    scheduler_free(run->scheduler);
    engine_close(run->engine);
    run->comm->ops->close(run->comm);
    tiny_model_remove(run->dir);
}

static void check_same_tokens(const struct run *a, const struct run *b)
{
    for (int id = 0; id < REQUESTS; id++) {
        ck_assert_int_eq(a->n[id], OUTPUT);
        ck_assert_int_eq(b->n[id], OUTPUT);
        for (int t = 0; t < OUTPUT; t++) {
            const struct sampled_token *x = &a->tokens[id][t], *y = &b->tokens[id][t];
            size_t top = (size_t)x->n_top;
            ck_assert_int_eq(x->token, y->token);
            ck_assert_int_eq(x->n_top, y->n_top);
            ck_assert(!memcmp(&x->logprob, &y->logprob, sizeof(float)));
            ck_assert(!memcmp(x->top_id, y->top_id, top * sizeof(int32_t)));
            ck_assert(!memcmp(x->top_logprob, y->top_logprob, top * sizeof(float)));
        }
    }
}

START_TEST(any_number_of_threads_gives_the_same_bits)
{
    static struct run one, many;
    open_run(&one, "cpu", 1, PACE_UNLIMITED);
    ck_assert_int_eq(one.scheduler->n_samplers, 1);
    finish_run(&one);
    for (int threads = 2; threads <= 4; threads++) {
        open_run(&many, "cpu", threads, PACE_UNLIMITED);
        ck_assert_int_eq(many.scheduler->n_samplers, threads);
        finish_run(&many);
        check_same_tokens(&one, &many);
        // This backend samples no tokens, so the host samples all.
        ck_assert_uint_eq(scheduler_get_load(many.scheduler).host_sampled, REQUESTS * OUTPUT);
        close_run(&many);
    }
    close_run(&one);
}
END_TEST

START_TEST(the_host_samples_only_for_requests_that_need_it)
{
    static struct run run;
    open_run(&run, "reference", 1, PACE_UNLIMITED);
    finish_run(&run);
    ck_assert_uint_eq(scheduler_get_load(run.scheduler).host_sampled, REQUESTS * 2 / 3 * OUTPUT);
    close_run(&run);
}
END_TEST

// Sampling one row takes far longer than a pass. Other sequences get a token from each pass. While they run, the host
// samples one row of a pass, and the sequences with such rows take turns.
START_TEST(slow_sampling_does_not_delay_other_sequences)
{
    static struct run limited, free_run;
    open_run(&free_run, "reference", 1, PACE_UNLIMITED);
    finish_run(&free_run);
    open_run(&limited, "reference", 1, 1000 * 1000);
    step(&limited); // no sequence runs before this step
    int last[REQUESTS] = {0}, on_host = 0;
    bool others = true;
    for (int pass = 1; others; pass++) {
        limited.scheduler->pace.decode_us = 1;
        limited.scheduler->pace.sample_us = 1e9;
        step(&limited);
        others = false;
        on_host = 0;
        for (int id = 0; id < REQUESTS; id++) {
            bool answering = limited.n[id] > limited.now[id] && limited.n[id] - limited.now[id] < OUTPUT;
            others |= !needs_host(id) && limited.n[id] < OUTPUT;
            on_host += needs_host(id) && limited.now[id];
            if (answering) ck_assert_int_le(pass - last[id], needs_host(id) ? REQUESTS * 2 / 3 : 1);
            if (limited.now[id]) last[id] = pass;
        }
        ck_assert_int_le(on_host, 1);
    }
    finish_run(&limited);
    check_same_tokens(&limited, &free_run);
    close_run(&limited);
    close_run(&free_run);
}
END_TEST

// Runs a step in which sampling one row takes sample_us. The target of a pass is a second.
static void step_sampling_in(struct run *run, double sample_us)
{
    run->scheduler->pace.decode_us = 1;
    run->scheduler->pace.sample_us = sample_us;
    step(run);
}

// The backend samples sequence 0, and the host samples one row of a pass. Sequence 1 decodes, and three others
// repeatedly ask for a single token. These four take turns.
START_TEST(first_tokens_do_not_stop_sequences_that_decode)
{
    enum { OTHERS = 3, FIRST_OTHER = 2 };
    static struct run run;
    open_empty_run(&run, "reference", 1, 1000 * 1000);
    add_request(&run, 0);
    add_request(&run, 1);
    step(&run);
    struct sampling one_token = sampling_of(2);
    one_token.max_tokens = 1;
    bool asks[OTHERS] = {false};
    int last = 0, first_tokens = 0;
    for (int pass = 1; run.n[0] < OUTPUT; pass++) {
        for (int k = 0; k < OTHERS; k++) {
            int id = FIRST_OTHER + k;
            first_tokens += run.n[id];
            if (run.n[id]) asks[k] = false;
            run.n[id] = 0;
            if (!asks[k]) add_sampled(&run, id, &one_token);
            asks[k] = true;
        }
        step_sampling_in(&run, 1e9);
        if (run.now[1]) last = pass;
        ck_assert_msg(pass - last <= OTHERS + 1, "no token for %d passes", pass - last);
    }
    ck_assert_int_ge(first_tokens, OUTPUT / 2);
    close_run(&run);
}
END_TEST

// No sequence waits for the fourth prompt, which the first pass cannot complete.
START_TEST(prompts_with_logprobs_alone_fill_their_passes)
{
    static struct run run;
    open_empty_run(&run, "reference", 1, 1000 * 1000);
    struct sampling sampling = sampling_of(0);
    sampling.prompt_logprobs = 1;
    sampling.max_tokens = 1;
    for (int id = 0; id < 4; id++)
        add_sampled(&run, id, &sampling);
    step_sampling_in(&run, 1e9);
    ck_assert_int_eq(run.n[0] + run.n[1] + run.n[2], 3);
    ck_assert_int_eq(run.n[3], 0);
    step_sampling_in(&run, 1e9);
    ck_assert_int_eq(run.n[3], 1);
    close_run(&run);
}
END_TEST

// The host reads eight rows of a pass. While the prompt runs, the host samples eight sequences and the backend one.
START_TEST(prompt_logprobs_and_tokens_share_the_rows_of_the_host)
{
    enum { DECODES = 8, ROWS = 8, ASKS = 11 };
    static struct run run;
    open_empty_run(&run, "reference", 1, 1000 * 1000);
    add_request(&run, 0);
    struct sampling sampling = sampling_of(1);
    for (int id = 1; id <= DECODES; id++)
        add_sampled(&run, id, &sampling);
    while (!run.n[DECODES])
        step(&run);
    sampling = sampling_of(0);
    sampling.prompt_logprobs = 1;
    add_sampled(&run, ASKS, &sampling);
    int passes = 0;
    for (; !run.n[ASKS]; passes++) {
        step_sampling_in(&run, 0.44e6 / (ROWS + 0.5));
        int tokens = 0;
        for (int id = 1; id <= DECODES; id++)
            tokens += run.now[id];
        ck_assert_int_ge(tokens, ROWS / 2);
    }
    ck_assert_int_le(passes, 2 + PROMPT / (ROWS / 2));
    close_run(&run);
}
END_TEST

static const struct model_config config = {.n_layers = 16,
                                           .hidden = 2048,
                                           .intermediate = 8192,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_size = 64,
                                           .vocab_size = 128256};

// A simulated machine: 10 ms for the decode rows, 0.1 ms for a prompt row, 0.8 ms to sample a row. The host samples the
// rows of sixty sequences while a long prompt runs.
START_TEST(a_pass_with_sampling_and_prompts_keeps_its_target)
{
    enum { DECODES = 80, WANT = 60, PASSES = 400, DECODE_US = 10000, ROW_US = 100, SAMPLE_US = 800 };
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    int slow = 0, host = 0, prompt = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        int max = pace_sampled_max(&pace), sampled = max < WANT ? max : WANT;
        struct pace_budget budget;
        pace_budget_init(&budget, &pace);
        for (int i = 0; i < sampled; i++)
            pace_budget_add_sampled(&budget);
        pace_budget_set_decodes(&budget, DECODES);
        int rows = pace_budget_grant_rows(&budget, 0, 2000, false);
        int us = DECODE_US + rows * ROW_US;
        pace_sampling_end(&pace, &budget.rows, sampled * SAMPLE_US);
        pace_pass_end(&pace, &budget.rows, us);
        slow += us + sampled * SAMPLE_US > 2 * DECODE_US;
        host += sampled;
        prompt += rows;
    }
    ck_assert_msg(slow <= 5, "%d slow passes", slow); // before the costs are known
    ck_assert_msg(host > 3 * PASSES, "%d rows sampled", host);
    ck_assert_msg(prompt > 20 * PASSES, "%d prompt rows", prompt);
}
END_TEST

SUITE("host sampling")
{
    TIMEOUT(60);
    TEST(any_number_of_threads_gives_the_same_bits);
    TEST(the_host_samples_only_for_requests_that_need_it);
    TEST(slow_sampling_does_not_delay_other_sequences);
    TEST(first_tokens_do_not_stop_sequences_that_decode);
    TEST(prompts_with_logprobs_alone_fill_their_passes);
    TEST(prompt_logprobs_and_tokens_share_the_rows_of_the_host);
    TEST(a_pass_with_sampling_and_prompts_keeps_its_target);
}
