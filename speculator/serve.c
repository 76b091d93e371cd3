// SPDX-License-Identifier: Apache-2.0
// See serve.h. One thread: it handles all events between two passes of the scorer, and waits for events without work.
#include "speculator/serve.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/log.h"
#include "speculator/messages.h"
#include "speculator/scorer.h"

// Results are sent once per pass, or when they reach this size: with importance they are large.
#define SEND_BYTES ((size_t)4 << 20)

struct speculator {
    struct engine *engine;
    struct node *node;
    struct scorer *scorer;
    struct score_outbox outbox;
    bool draining, refused;
};

static enum status speculator_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

// Sends the collected results, with the size and time of the pass that they complete (zeros: none).
static void send_results(struct speculator *s, const struct scorer_pass *pass)
{
    if (!s->outbox.n && !pass->rows) return;
    Forepack__Cluster__V1__ScoreResults scored;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    score_outbox_message(&s->outbox, &scored);
    scored.rows = (uint32_t)pass->rows;
    scored.pairs = (uint64_t)pass->pairs;
    scored.pass_us = pass->us < UINT32_MAX ? (uint32_t)pass->us : UINT32_MAX;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED;
    message.scored = &scored;
    node_send(s->node, &message);
    score_outbox_clear(&s->outbox);
}

static void collect_result(void *context, const struct score_result *result)
{
    struct speculator *s = context;
    if (result->error)
        log_event(LOG_WARN, "score_failed", LOG_REQUEST(result->request), LOG_FIELD("reason", result->error));
    score_outbox_add(&s->outbox, result);
    if (s->outbox.size_bytes >= SEND_BYTES) send_results(s, &(struct scorer_pass){0});
}

static void handle_bin(struct speculator *s, const Forepack__Cluster__V1__ScoreBin *bin)
{
    log_event(LOG_DEBUG, "bin_received", LOG_FIELD("bin", bin->bin_id), LOG_FIELD("prompts", bin->n_items));
    for (size_t i = 0; i < bin->n_items; i++) {
        struct score_item item;
        struct token_range *pinned;
        score_item_from_message(bin->items[i], &item, &pinned);
        scorer_add(s->scorer, &item);
        free(pinned);
    }
}

static void handle_message(struct speculator *s, const Forepack__Cluster__V1__RouterMessage *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN: handle_bin(s, message->score_bin); break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        for (size_t i = 0; i < message->cancel->n_requests; i++)
            scorer_cancel(s->scorer, message->cancel->requests[i]);
        break;
    default:
        log_event(LOG_ERROR, "message_unexpected", LOG_FIELD("kind", (int)message->kind_case),
                  LOG_FIELD("reason", "a speculator handles score bins and cancels"));
    }
}

static void handle_event(struct speculator *s, const struct node_event *event)
{
    switch (event->kind) {
    case NODE_MESSAGE: handle_message(s, event->message); break;
    case NODE_DETACHED:
        scorer_clear(s->scorer);
        score_outbox_clear(&s->outbox);
        break;
    case NODE_DRAIN: s->draining = true; break;
    case NODE_REFUSED: s->refused = true; break;
    case NODE_ATTACHED:
    case NODE_NOTHING: break;
    }
}

static bool is_busy(const struct speculator *s)
{
    struct scorer_load load = scorer_get_load(s->scorer);
    return load.running + load.waiting > 0;
}

static void report_load(struct speculator *s)
{
    struct scorer_load load = scorer_get_load(s->scorer);
    node_set_load(s->node, (uint32_t)load.kv_blocks_free, (uint32_t)load.running, (uint32_t)load.waiting);
}

// Handles all waiting events; without work, waits for one.
static void handle_events(struct speculator *s)
{
    bool more = true;
    while (more && !s->refused) {
        bool wait = !is_busy(s) && !s->draining && !s->outbox.n;
        if (wait) report_load(s); // after a cancel, KV blocks are free again
        struct node_event event;
        node_next(s->node, wait ? -1 : 0, &event);
        more = event.kind != NODE_NOTHING;
        handle_event(s, &event);
        node_event_free(&event);
    }
}

enum node_end speculator_serve(struct engine *engine, struct node *node, const struct node_limits *limits)
{
    struct speculator s = {.engine = engine, .node = node};
    struct scorer_model model = {.config = model_get_config(engine_model(engine)),
                                 .token_budget = limits->token_budget,
                                 .max_seqs = limits->max_seqs,
                                 .context_tokens = limits->context_tokens,
                                 .kv_blocks = limits->kv_blocks,
                                 .samples = model_samples(engine_model(engine)),
                                 .prefix_cache = limits->prefix_cache,
                                 .forward = speculator_forward,
                                 .context = engine};
    s.scorer = scorer_create(&model, collect_result, &s);
    enum node_end end = NODE_END_DRAINED;
    for (;;) {
        handle_events(&s);
        if (s.refused) end = NODE_END_REFUSED;
        if (s.refused || (s.draining && !is_busy(&s))) break;
        report_load(&s); // the load during the pass
        if (scorer_step(s.scorer) != STATUS_OK) {
            log_event(LOG_ERROR, "step_failed", LOG_REASON);
            end = NODE_END_BROKEN;
            break;
        }
        struct scorer_pass pass = scorer_last_pass(s.scorer);
        send_results(&s, &pass);
        report_load(&s);
    }
    send_results(&s, &(struct scorer_pass){0});
    scorer_free(s.scorer);
    score_outbox_clear(&s.outbox);
    return end;
}
