// SPDX-License-Identifier: Apache-2.0
// The passes that a node measures at its start: they describe possible work, respect the node's limits, and leave no
// trace in later results. The argument names a backend.
#include <stdlib.h>
#include <string.h>

#include "engine/start_costs.h"
#include "tests/cuda_here.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"

static const char *backend;

static struct engine *engine_of(const char *dir, struct comm **comm_p)
{
    struct model_options options = options_for(dir, backend, "bf16");
    struct engine *engine;
    options.max_rows = options.max_logit_rows = 128;
    options.n_kv_blocks = 32;
    ck_assert_int_eq(comm_open_self(comm_p), STATUS_OK);
    ck_assert_msg(engine_open(&options, *comm_p, &engine) == STATUS_OK, "%s", status_message());
    return engine;
}

static void engine_end(struct engine *engine, struct comm *comm)
{
    engine_close(engine);
    comm->ops->close(comm);
}

static const struct {
    struct start_limits limits;
    int passes, most_rows;
} cases[] = {
    {{128, 512, true, INT64_MAX / 8}, 4, 128},
    {{128, 512, false, INT64_MAX / 8}, 4, 128},
    {{128, 512, true, 0}, 3, 64},
    {{16, 512, false, 0}, 3, 16},
    {{128, 20, true, INT64_MAX / 8}, 2, 20},
    {{1, 1, true, 0}, 2, 1},
};

START_TEST(measured_passes_are_possible_and_within_the_limits)
{
    const struct start_limits *limits = &cases[_i].limits;
    struct tiny_model spec = tiny_model_spec("llama3");
    char *dir = tiny_model_temp(&spec);
    struct comm *comm;
    struct engine *engine = engine_of(dir, &comm);
    struct start_costs costs;
    ck_assert_msg(start_costs_measure(engine, limits, &costs) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(costs.n, cases[_i].passes);
    for (int i = 0; i < costs.n; i++) {
        const struct start_pass *pass = &costs.passes[i];
        ck_assert_int_ge(pass->rows, 1);
        ck_assert_int_le(pass->rows, cases[_i].most_rows);
        ck_assert_int_ge(pass->pairs, pass->rows);
        ck_assert_int_le(pass->pairs, (int64_t)pass->rows * limits->entries);
        ck_assert_int_ge(pass->us, 1);
    }
    ck_assert_int_eq(costs.passes[costs.n - 1].rows, cases[_i].most_rows);
    engine_end(engine, comm);
    tiny_model_remove(dir);
}
END_TEST

// Runs a prompt and a row after it. logits: [2][vocab_size].
static void answer(struct engine *engine, float *logits, size_t vocab)
{
    static struct forward f;
    int32_t tokens[40];
    struct forward_result result;
    for (int i = 0; i < 40; i++)
        tokens[i] = i * 7 % 50;
    for (int pass = 0; pass < 2; pass++) {
        forward_start(&f, 1);
        forward_add(&f, 0, pass ? 39 : 0, tokens + (pass ? 39 : 0), NULL, pass ? 1 : 39, LOGITS_LAST);
        ck_assert_msg(engine_forward(engine, &f.batch, &result) == STATUS_OK, "%s", status_message());
        memcpy(logits + (size_t)pass * vocab, result.logits, vocab * sizeof *logits);
    }
}

START_TEST(measuring_changes_no_later_result)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    char *dir = tiny_model_temp(&spec);
    const size_t vocab = (size_t)spec.vocab_size;
    float *logits[2];
    for (int measured = 0; measured < 2; measured++) {
        struct comm *comm;
        struct engine *engine = engine_of(dir, &comm);
        struct start_costs costs;
        if (measured) ck_assert_int_eq(start_costs_measure(engine, &cases[0].limits, &costs), STATUS_OK);
        logits[measured] = mem_alloc_array(2 * vocab, sizeof(float));
        answer(engine, logits[measured], vocab);
        engine_end(engine, comm);
    }
    ck_assert_mem_eq(logits[0], logits[1], 2 * vocab * sizeof(float));
    free(logits[0]);
    free(logits[1]);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_pass_cannot_leave_out_more_layers_than_there_are)
{
    static struct forward f;
    struct tiny_model spec = tiny_model_spec("llama3");
    char *dir = tiny_model_temp(&spec);
    struct comm *comm;
    struct engine *engine = engine_of(dir, &comm);
    struct forward_result result;
    const int layers = model_get_config(engine_model(engine))->n_layers;
    forward_start(&f, 1);
    forward_add(&f, 0, 0, &(int32_t){1}, NULL, 1, LOGITS_LAST);
    f.batch.skipped_layers = layers;
    ck_assert_int_eq(engine_forward(engine, &f.batch, &result), STATUS_OK);
    f.batch.skipped_layers = layers + 1;
    ck_assert_int_eq(engine_forward(engine, &f.batch, &result), STATUS_INTERNAL);
    engine_end(engine, comm);
    tiny_model_remove(dir);
}
END_TEST

SUITE("start_costs")
{
    backend = argc > 1 ? argv[1] : "cpu";
    SKIP_UNLESS(strcmp(backend, "cuda") != 0 || cuda_is_here());
    EACH(measured_passes_are_possible_and_within_the_limits, cases);
    TEST(measuring_changes_no_later_result);
    TEST(a_pass_cannot_leave_out_more_layers_than_there_are);
}
