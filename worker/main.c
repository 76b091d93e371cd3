// SPDX-License-Identifier: Apache-2.0
// forepack-worker: one rank of a worker group. `mpirun -n TP forepack-worker ...` starts a group of TP ranks. The
// shared options, start and end are in node_main(); this file adds the worker's options and serving loop.
#include "engine/node_main.h"

#include "lib/base/log.h"
#include "worker/pace.h"
#include "worker/scheduler.h"
#include "worker/service.h"

static struct node_options common;
static struct join_options join;
static int64_t step_timeout_s, itl_target_ms;
static char *grammar_library;

static const struct option options[] = {
    NODE_OPTION_ROWS(common, "2048", "64"),
    {.name = "-Answers"},
    {.name = "grammar-library",
     .type = OPTION_STRING,
     .value = &grammar_library,
     .placeholder = "FILE",
     .help = GRAMMAR_LIBRARY_HELP},
    {.name = "-Passes"},
    {.name = "step-timeout-s",
     .type = OPTION_INT,
     .value = &step_timeout_s,
     .default_text = ENGINE_STEP_TIMEOUT_S,
     .max = 86400,
     .unit = "s",
     .help = "longest time without progress in a pass; then a rank, a device or a link hangs, and the group ends. "
             "Each half of a layer is progress; 0: no limit"},
    {.name = "itl-target-ms",
     .type = OPTION_INT,
     .value = &itl_target_ms,
     .default_text = "0",
     .max = 3600000,
     .unit = "ms",
     .help = "target time of passes with decode rows, which limits their prompt rows; 0: twice the time of the decode "
             "rows alone"},
    JOIN_OPTION_ROWS(join),
    {0},
};

static enum status check_options(void)
{
    if (common.max_seqs > common.token_budget) {
        return status_fail(
            STATUS_INVALID,
            "--max-num-seqs %lld: must be at most --max-num-batched-tokens (%lld), because each sequence needs a row",
            (long long)common.max_seqs, (long long)common.token_budget);
    }
    if (common.max_context == 1)
        return status_fail(
            STATUS_INVALID,
            "--max-model-len 1: must be at least 2, for a token of the prompt and a token of the answer");
    return STATUS_OK;
}

static void send_to_router(void *node, const Forepack__Cluster__V1__NodeMessage *message)
{
    node_send(node, message);
}

static void wake_node(void *node)
{
    node_wake(node);
}

static void report_load(struct node *node, const struct service *service)
{
    struct scheduler_load load = service_get_load(service);
    struct link_load links[NODE_LINKS_MAX];
    scheduler_count_links(service_scheduler(service), links);
    node_set_load(node, &(struct node_load){.kv_blocks_free = (uint32_t)load.kv_blocks_free,
                                            .running = (uint32_t)load.running,
                                            .waiting = (uint32_t)load.waiting,
                                            .preemptions = load.preemptions,
                                            .links = links});
}

// Handles events one at a time, runs a step when there is no event, and sleeps when there is no work either.
static enum node_end serve_events(struct service *service, struct node *node)
{
    bool draining = false;
    while (!draining || service_busy(service)) {
        struct node_event event;
        node_next(node, service_ready(service) ? 0 : -1, &event);
        enum node_event_kind kind = event.kind;
        switch (kind) {
        case NODE_NOTHING: break;
        case NODE_MESSAGE: service_handle(service, event.message); break;
        case NODE_ATTACHED: // fall through: the remaining sequences of the link belong to an earlier stream
        case NODE_DETACHED: service_drop_link(service, event.link); break;
        case NODE_DRAIN: draining = true; break;
        }
        node_event_free(&event);
        if (kind == NODE_NOTHING && service_step(service) != STATUS_OK) {
            log_event(LOG_ERROR, "step_failed", LOG_REASON);
            return NODE_END_BROKEN;
        }
        report_load(node, service);
    }
    return NODE_END_DRAINED;
}

static struct grammar_library *grammars_open(const struct engine *engine, const struct tokenizer *tokenizer)
{
    const struct model_config *config = model_get_config(engine_model(engine));
    return grammar_library_start(grammar_library, tokenizer, config->vocab_size, config->eos_id, config->n_eos);
}

static enum node_end serve(struct engine *engine, const struct tokenizer *tokenizer, struct node *node,
                           const struct node_limits *limits)
{
    engine_set_step_timeout(engine, (int)(step_timeout_s * 1000));
    struct scheduler_limits mine = {
        .token_budget = limits->token_budget,
        .max_seqs = limits->max_seqs,
        .context_tokens = limits->context_tokens,
        .kv_blocks = limits->kv_blocks,
        .prefix_cache = limits->prefix_cache,
        .pace_us = itl_target_ms ? itl_target_ms * 1000 : PACE_TWICE,
    };
    struct service *service;
    if (service_create(engine, &mine, send_to_router, node, &service) != STATUS_OK) {
        log_event(LOG_ERROR, "scheduler_failed", LOG_REASON);
        return NODE_END_BROKEN;
    }
    struct grammar_library *grammars = grammars_open(engine, tokenizer);
    service_set_grammars(service, grammars, wake_node);
    report_load(node, service);
    enum node_end end = serve_events(service, node);
    struct scheduler_load load = service_get_load(service);
    log_event(LOG_INFO, "served", LOG_FIELD("prompt_rows", load.prompt_rows),
              LOG_FIELD("reused_rows", load.reused_rows), LOG_FIELD("most_running", load.most_running),
              LOG_FIELD("host_sampled", load.host_sampled), LOG_FIELD("preemptions", load.preemptions));
    service_free(service);
    grammar_library_free(grammars);
    return end;
}

int main(int argc, char **argv)
{
    static const struct node_program program = {
        .name = "worker",
        .role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER,
        .usage =
            "Usage: forepack-worker --model DIR --router HOST:PORT [options]\n" GROUP_USAGE
            "       forepack-worker --lead HOST:PORT --hosts N [options]   (leads a group over several hosts)\n"
            "       forepack-worker --join HOST:PORT [options]             (on the other hosts)\n"
            "\nA worker group of a Forepack cluster: prefills kept prompt tokens and decodes.\n"
            "SIGTERM, SIGINT or SIGUSR1 drains it; a second signal ends it immediately. SIGHUP reads changed files.",
        .options = options,
        .common = &common,
        .join = &join,
        .logit_rows = scheduler_logit_rows,
        .check = check_options,
        .serve = serve,
    };
    return node_main(&program, argc, argv);
}
