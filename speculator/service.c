// SPDX-License-Identifier: Apache-2.0
#include "speculator/service.h"

#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "speculator/messages.h"

// Results are sent once per pass, or earlier if the router needs this much memory (in bytes) for them. Results with
// importance or with single kept tokens are large. The router ends the stream of a node if 40 MiB of its unpacked
// messages wait.
#define SEND_MEMORY ((size_t)4 << 20)

struct score_service {
    struct scorer *scorer;
    struct score_outbox outbox;
    struct draft_outbox drafts;
    score_service_send_fn *send;
    void *arg;
};

// Sends the collected results, with the size and time of the pass that completed them, or zeros if no pass has run.
static void send_results(struct score_service *service, const struct scorer_pass *pass)
{
    if (!service->outbox.n && !pass->rows) return;
    Forepack__Cluster__V1__ScoreResults scored;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    score_outbox_message(&service->outbox, &scored);
    scored.rows = (uint32_t)pass->rows;
    scored.pairs = (uint64_t)pass->pairs;
    scored.pass_us = pass->us < UINT32_MAX ? (uint32_t)pass->us : UINT32_MAX;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED;
    message.scored = &scored;
    service->send(service->arg, &message);
    score_outbox_clear(&service->outbox);
}

static void collect_result(void *context, const struct score_result *result)
{
    struct score_service *service = context;
    if (result->error)
        log_event(LOG_WARN, "score_failed", LOG_REQUEST(result->request), LOG_FIELD("reason", result->error));
    score_outbox_add(&service->outbox, result);
    if (service->outbox.memory >= SEND_MEMORY) send_results(service, &(struct scorer_pass){0});
}

static void send_drafts(struct score_service *service)
{
    if (!service->drafts.n) return;
    Forepack__Cluster__V1__Drafts drafts;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    draft_outbox_message(&service->drafts, &drafts);
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS;
    message.drafts = &drafts;
    service->send(service->arg, &message);
    draft_outbox_clear(&service->drafts);
}

static void collect_draft(void *context, const struct score_draft *draft)
{
    struct score_service *service = context;
    draft_outbox_add(&service->drafts, draft);
}

static void handle_advances(struct score_service *service, const Forepack__Cluster__V1__Advances *message)
{
    for (size_t i = 0; i < message->n_advances; i++) {
        struct score_advance advance = score_advance_from_message(message->advances[i]);
        if (!scorer_advance(service->scorer, &advance)) draft_outbox_add_released(&service->drafts, advance.request);
    }
}

static void handle_bin(struct score_service *service, const Forepack__Cluster__V1__ScoreBin *bin)
{
    log_event(LOG_DEBUG, "bin_received", LOG_FIELD("bin", bin->bin_id), LOG_FIELD("prompts", bin->n_items));
    for (size_t i = 0; i < bin->n_items; i++) {
        struct score_item item;
        struct token_range *pinned;
        score_item_from_message(bin->items[i], &item, &pinned);
        scorer_add(service->scorer, &item);
        free(pinned);
    }
}

void score_service_handle(struct score_service *service, const Forepack__Cluster__V1__RouterMessage *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN: handle_bin(service, message->score_bin); break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES: handle_advances(service, message->advances); break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL:
        for (size_t i = 0; i < message->cancel->n_requests; i++)
            scorer_cancel(service->scorer, message->cancel->requests[i]);
        break;
    default:
        log_event(LOG_ERROR, "message_unexpected", LOG_FIELD("kind", (int)message->kind_case),
                  LOG_FIELD("reason", "a speculator handles score bins, advances and cancels"));
    }
}

void score_service_drop_link(struct score_service *service, int link)
{
    scorer_drop_link(service->scorer, link);
    score_outbox_drop_link(&service->outbox, link);
    draft_outbox_drop_link(&service->drafts, link);
}

void score_service_stop_drafts(struct score_service *service)
{
    scorer_on_draft(service->scorer, NULL);
}

bool score_service_busy(const struct score_service *service)
{
    struct scorer_load load = scorer_get_load(service->scorer);
    return load.running + load.waiting > 0 || service->outbox.n > 0 || service->drafts.n > 0 ||
           scorer_drafts(service->scorer);
}

enum status score_service_step(struct score_service *service)
{
    TRY(scorer_step(service->scorer));
    struct scorer_pass pass = scorer_last_pass(service->scorer);
    send_results(service, &pass);
    send_drafts(service);
    return STATUS_OK;
}

struct scorer_load score_service_get_load(const struct score_service *service)
{
    struct scorer_load load = scorer_get_load(service->scorer);
    load.waiting += (int)service->outbox.n;
    return load;
}

void score_service_count_links(const struct score_service *service, struct link_load *links)
{
    scorer_count_links(service->scorer, links);
    for (int i = 0; i < service->outbox.n; i++)
        links[link_id_link(service->outbox.results[i]->request) % NODE_LINKS_MAX].waiting++;
}

struct score_service *score_service_create(const struct scorer_model *model, score_service_send_fn *send, void *arg)
{
    struct score_service *service = mem_alloc(sizeof *service);
    service->scorer = scorer_create(model, collect_result, service);
    if (model->draft_blocks) scorer_on_draft(service->scorer, collect_draft);
    service->send = send;
    service->arg = arg;
    return service;
}

void score_service_free(struct score_service *service)
{
    scorer_free(service->scorer);
    score_outbox_clear(&service->outbox);
    draft_outbox_clear(&service->drafts);
    free(service);
}
