// SPDX-License-Identifier: Apache-2.0
// forepack-speculator: one rank of a speculator. node_main() handles options, start and end, and this file adds the
// serving loop. Its one thread handles all events between two passes of the scorer, and waits for events if there is no
// work.
#include "engine/node_main.h"

#include <stdbool.h>

#include "lib/base/log.h"
#include "speculator/service.h"

static struct node_options common;

static double draft_share;

static const struct option options[] = {
    NODE_OPTION_ROWS(common, "2048", "32"),
    {.name = "-Drafts"},
    {.name = "draft-kv-share",
     .type = OPTION_REAL,
     .value = &draft_share,
     .default_text = "0.25",
     .max = 1,
     .help =
         "share of the KV cache for prompts that are held after scoring to draft their answers; 0: no prompt is held"},
    {0},
};

static struct calibration calibration;
static bool is_calibrated;

struct speculator {
    struct node *node;
    struct score_service *service;
    bool draining;
};

static enum status run_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

static void send_to_router(void *node, const Forepack__Cluster__V1__NodeMessage *message)
{
    node_send(node, message);
}

static void handle_event(struct speculator *s, const struct node_event *event)
{
    switch (event->kind) {
    case NODE_MESSAGE: score_service_handle(s->service, event->message); break;
    case NODE_DETACHED: score_service_drop_link(s->service, event->link); break;
    case NODE_DRAIN:
        s->draining = true;
        // a drain must not wait for held prompts: their answers continue without drafts
        score_service_stop_drafts(s->service);
        break;
    case NODE_ATTACHED:
    case NODE_NOTHING: break;
    }
}

static void report_load(struct speculator *s)
{
    struct scorer_load load = score_service_get_load(s->service);
    struct link_load links[NODE_LINKS_MAX];
    score_service_count_links(s->service, links);
    node_set_load(s->node, &(struct node_load){.kv_blocks_free = (uint32_t)load.kv_blocks_free,
                                               .running = (uint32_t)load.running,
                                               .waiting = (uint32_t)load.waiting,
                                               .held_prompts = (uint32_t)load.held_prompts,
                                               .held_kv_blocks = (uint32_t)load.draft_blocks,
                                               .links = links});
}

// Handles all waiting events. Waits for one if there is no work.
static void handle_events(struct speculator *s)
{
    bool more = true;
    while (more) {
        bool wait = !score_service_busy(s->service) && !s->draining;
        if (wait) report_load(s); // a cancel has freed KV blocks
        struct node_event event;
        node_next(s->node, wait ? -1 : 0, &event);
        more = event.kind != NODE_NOTHING;
        handle_event(s, &event);
        node_event_free(&event);
    }
}

static enum node_end serve_events(struct speculator *s)
{
    for (;;) {
        handle_events(s);
        if (s->draining && !score_service_busy(s->service)) return NODE_END_DRAINED;
        report_load(s); // the load during the pass
        if (score_service_step(s->service) != STATUS_OK) {
            log_event(LOG_ERROR, "step_failed", LOG_REASON);
            return NODE_END_BROKEN;
        }
        report_load(s);
    }
}

static enum node_end serve(struct engine *engine, const struct tokenizer *tokenizer, struct node *node,
                           const struct node_limits *limits)
{
    struct sentence_table sentences = sentence_table_create(tokenizer);
    struct scorer_model model = {.config = model_get_config(engine_model(engine)),
                                 .token_budget = limits->token_budget,
                                 .max_seqs = limits->max_seqs,
                                 .context_tokens = limits->context_tokens,
                                 .kv_blocks = limits->kv_blocks,
                                 .draft_blocks = (int)(draft_share * limits->kv_blocks),
                                 .samples = model_samples(engine_model(engine)),
                                 .sentences = sentences.n ? &sentences : NULL,
                                 .prefix_cache = limits->prefix_cache,
                                 .calibration = is_calibrated ? &calibration : NULL,
                                 .forward = run_forward,
                                 .context = engine};
    struct speculator s = {.node = node, .service = score_service_create(&model, send_to_router, node)};
    enum node_end end = serve_events(&s);
    score_service_free(s.service);
    sentence_table_free(&sentences);
    return end;
}

// Adds the calibration that is stored next to the weights, if any. Random weights have no calibration.
static enum status describe(Forepack__Cluster__V1__Hello *hello)
{
    static Forepack__Cluster__V1__Calibration message;
    if (node_has_random_weights(&common)) return STATUS_OK;
    enum status status = calibration_read(common.model, &calibration);
    if (status == STATUS_NOT_FOUND) return STATUS_OK;
    const struct calibration_model self = {hello->model_fingerprint, hello->tokenizer_fingerprint};
    if (status == STATUS_OK) status = calibration_check(&calibration, common.model, &self);
    if (status != STATUS_OK) return status;
    is_calibrated = true;
    forepack__cluster__v1__calibration__init(&message);
    message.fingerprint = calibration_fingerprint(&calibration);
    message.main_fingerprint = calibration.main.model;
    message.look_ahead = (uint32_t)calibration.look_ahead;
    message.chunk_tokens = calibration.chunk_tokens;
    message.pool_window = (uint32_t)calibration.pool_window;
    message.tail_tokens = (uint32_t)calibration.tail_tokens;
    hello->calibration = &message;
    return STATUS_OK;
}

// A calibration of another model is found only with the weights.
static enum status check_files(void)
{
    static struct calibration unused;
    if (node_has_random_weights(&common)) return STATUS_OK;
    enum status status = calibration_read(common.model, &unused);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static const struct node_program program = {
    .name = "speculator",
    .role = FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR,
    .usage =
        "Usage: forepack-speculator --model DIR --router HOST:PORT [options]\n" GROUP_USAGE
        "\nA speculator of a Forepack cluster: scores prompts with a small model and selects the tokens to prefill.\n"
        "SIGTERM, SIGINT or SIGUSR1 drains it; a second signal ends it immediately. SIGHUP reads changed files.",
    .options = options,
    .common = &common,
    .check_files = check_files,
    .describe = describe,
    .serve = serve,
};

int main(int argc, char **argv)
{
    return node_main(&program, argc, argv);
}
