// SPDX-License-Identifier: Apache-2.0
// The speculator role, see role.h.
#include "sim/role.h"

#include "sim/answers.h"
#include "sim/calibrations.h"
#include "speculator/service.h"

static enum status run_forward(void *engine, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(engine, batch, result);
}

static const struct sentence_table *answer_sentences(void)
{
    static uint8_t marks[SCENARIO_VOCAB_MAX];
    static const struct sentence_table table = {marks, SCENARIO_VOCAB_MAX};
    for (int token = 0; token < SCENARIO_VOCAB_MAX; token++)
        marks[token] = answer_ends_sentence(token) ? SENTENCE_ENDS_LINE : 0;
    return &table;
}

static void *speculator_create(struct engine *engine, const struct scenario_node *plan, role_send_fn *send, void *node)
{
    struct scorer_model model = {.config = model_get_config(engine_model(engine)),
                                 .token_budget = (int)plan->budget,
                                 .max_seqs = (int)plan->max_seqs,
                                 .context_tokens = (int)plan->context,
                                 .kv_blocks = (int)plan->kv_blocks,
                                 .draft_blocks = (int)plan->draft_blocks,
                                 .samples = model_samples(engine_model(engine)),
                                 .sentences = answer_sentences(),
                                 .prefix_cache = plan->prefix_cache,
                                 .calibration = sim_calibration(plan->calibration),
                                 .forward = run_forward,
                                 .context = engine};
    return score_service_create(&model, send, node);
}

static void speculator_free(void *service)
{
    score_service_free(service);
}

static void speculator_handle(void *service, const Forepack__Cluster__V1__RouterMessage *message)
{
    score_service_handle(service, message);
}

static void speculator_drop_all(void *service)
{
    score_service_drop_link(service, 0);
}

static bool speculator_busy(const void *service)
{
    return score_service_busy(service);
}

static enum status speculator_step(void *service)
{
    return score_service_step(service);
}

static struct role_load speculator_load(const void *service)
{
    struct scorer_load load = score_service_get_load(service);
    return (struct role_load){load.kv_blocks_free, load.running, load.waiting, load.held_prompts, load.draft_blocks};
}

static const char *speculator_check(const void *service) // scorer_free() checks that no block is left referenced
{
    return NULL;
}

const struct role_ops speculator_role = {speculator_create, speculator_free, speculator_handle, speculator_drop_all,
                                         speculator_busy,   speculator_step, speculator_load,   speculator_check};
