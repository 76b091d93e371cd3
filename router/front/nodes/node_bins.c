// SPDX-License-Identifier: Apache-2.0
// Converts the core's actions to messages for nodes: bins, drafts and cancellations. See node_link.h.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_wire.h"
#include "router/front/nodes/node_link.h"

typedef Forepack__Cluster__V1__RouterMessage router_message;

// Returns one allocation with the list and its messages. The caller frees it.
static Forepack__Cluster__V1__Range **range_messages(const struct token_range *ranges, int n)
{
    Forepack__Cluster__V1__Range **list = mem_alloc((size_t)n * (sizeof *list + sizeof **list) + 1);
    Forepack__Cluster__V1__Range *items = (void *)(list + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__cluster__v1__range__init(list[i]);
        list[i]->first = (uint32_t)ranges[i].first;
        list[i]->last = (uint32_t)ranges[i].last;
    }
    return list;
}

// --- score bins

// Returns the ranges that the speculator must keep, in one allocation that the caller frees: the pinned ranges, and the
// rows of earlier turns of the conversation.
static Forepack__Cluster__V1__Range **pinned_messages(const struct request *r, const struct score_prompt *prompt,
                                                      size_t *n_p)
{
    int n = prompt->n_pinned, n_rows = request_pins_rows(r) ? r->conversation->n_rows : 0;
    struct token_range *pinned = mem_alloc_array((size_t)n + (size_t)n_rows, sizeof *pinned);
    if (n) memcpy(pinned, prompt->pinned, (size_t)n * sizeof *pinned);
    if (n_rows) memcpy(pinned + n, r->conversation->rows, (size_t)n_rows * sizeof *pinned);
    *n_p = (size_t)n + (size_t)n_rows;
    Forepack__Cluster__V1__Range **messages = range_messages(pinned, n + n_rows);
    free(pinned);
    return messages;
}

// Fills in an item. The caller frees `m->pinned`.
static void score_item_fill(int tail_tokens, const struct request *r, Forepack__Cluster__V1__ScoreItem *m)
{
    forepack__cluster__v1__score_item__init(m);
    m->request = r->number;
    const struct score_prompt prompt = request_score_prompt(r);
    m->token_ids = (uint32_t *)r->spec.tokens;
    m->n_token_ids = (size_t)prompt.n_tokens;
    prefill_to_message(&r->spec.prefill, GENERATION_ALL_GIVEN, &m->base);
    m->min_keep_rate = r->spec.prefill.min_keep_rate;
    m->want_importance = r->spec.want_importance;
    m->salt = r->spec.prefix_salt;
    if (r->trace) m->trace = r->trace->trace_text;
    m->tail_tokens = (uint32_t)prefill_tail_tokens(tail_tokens, prompt.n_tokens);
    m->pinned = pinned_messages(r, &prompt, &m->n_pinned);
    m->budget_tokens = (uint32_t)request_budget_tokens(r);
    m->hold = prompt.n_tokens == r->spec.n_tokens && request_is_drafted(r);
}

static void send_score_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct node_link *node = link;
    Forepack__Cluster__V1__ScoreItem *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__ScoreItem **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        score_item_fill(node->tail_tokens, requests[i], &items[i]);
    }
    Forepack__Cluster__V1__ScoreBin bin = FOREPACK__CLUSTER__V1__SCORE_BIN__INIT;
    bin.bin_id = bin_id;
    bin.items = list;
    bin.n_items = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    node->ops->send(node, &message);
    for (int i = 0; i < n; i++)
        free(items[i].pinned);
    free(list);
    free(items);
}

// --- prefill bins

// Returns the kept prompt tokens, then the tokens generated before a replay. The caller frees them.
static uint32_t *sequence_tokens(const struct request *r, size_t *n_p)
{
    uint32_t *ids = mem_alloc_array((size_t)r->usage.kept_tokens + (size_t)r->usage.completion_tokens, sizeof *ids);
    size_t n = 0;
    for (int k = 0; k < r->n_kept_ranges; k++) {
        for (int32_t t = r->kept[k].first; t <= r->kept[k].last; t++)
            ids[n++] = (uint32_t)r->spec.tokens[t];
    }
    for (int i = 0; i < r->usage.completion_tokens; i++)
        ids[n++] = (uint32_t)r->output[i];
    *n_p = n;
    return ids;
}

// Fills in a sequence. The caller frees `m->token_ids` and `m->kept`.
static void sequence_fill(const struct request *r, Forepack__Cluster__V1__Sampling *sampling,
                          Forepack__Cluster__V1__Sequence *m)
{
    forepack__cluster__v1__sequence__init(m);
    m->request = r->number;
    m->token_ids = sequence_tokens(r, &m->n_token_ids);
    m->kept = range_messages(r->kept, r->n_kept_ranges);
    m->n_kept = (size_t)r->n_kept_ranges;
    m->prompt_tokens = (uint32_t)r->spec.n_tokens;
    m->generated = (uint32_t)r->usage.completion_tokens;
    forepack__cluster__v1__sampling__init(sampling);
    sampling_to_message(&r->spec.sampling, GENERATION_ALL_GIVEN, &sampling->base);
    const struct logit_bias *bias = &r->spec.sampling.logit_bias;
    sampling->logit_bias_ids = (uint32_t *)bias->ids; // never negative
    sampling->logit_bias = bias->numbers;
    sampling->n_logit_bias_ids = sampling->n_logit_bias = (size_t)bias->n;
    const struct grammar_spec *grammar = &r->spec.sampling.grammar;
    sampling->grammar_kind = (Forepack__Cluster__V1__GrammarKind)grammar->kind;
    if (grammar->text) sampling->grammar = grammar->text;
    m->sampling = sampling;
    m->prompt_logprobs_from = 1 + (uint32_t)r->n_prompt_logprobs;
    m->salt = r->spec.prefix_salt;
    m->draft_ids = (uint32_t *)r->draft; // never negative
    m->n_draft_ids = (size_t)r->n_draft;
    m->drafts = request_is_drafted(r);
    m->background = r->spec.background;
    if (r->trace) m->trace = r->trace->trace_text;
    if (r->spec.sampling.repetition_penalty != 1 && r->usage.kept_tokens < r->spec.n_tokens) {
        m->penalty_ids = (uint32_t *)r->spec.tokens; // penalties count pruned tokens too
        m->n_penalty_ids = (size_t)r->spec.n_tokens;
    }
}

static void send_prefill_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct node_link *node = link;
    Forepack__Cluster__V1__Sequence *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__Sequence **list = mem_alloc_array((size_t)n, sizeof *list);
    Forepack__Cluster__V1__Sampling *sampling = mem_alloc_array((size_t)n, sizeof *sampling);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        sequence_fill(requests[i], &sampling[i], &items[i]);
    }
    Forepack__Cluster__V1__PrefillBin bin = FOREPACK__CLUSTER__V1__PREFILL_BIN__INIT;
    bin.bin_id = bin_id;
    bin.sequences = list;
    bin.n_sequences = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    node->ops->send(node, &message);
    for (int i = 0; i < n; i++) {
        free(items[i].token_ids);
        free(items[i].kept);
    }
    free(sampling);
    free(list);
    free(items);
}

// --- drafts

static void advance_fill(const struct draft_advance *advance, Forepack__Cluster__V1__Advance *m)
{
    const struct request *r = advance->request;
    forepack__cluster__v1__advance__init(m);
    m->request = r->number;
    m->from = (uint32_t)advance->from;
    m->token_ids = (uint32_t *)r->output + advance->from; // never negative
    m->n_token_ids = (size_t)(r->usage.completion_tokens - advance->from);
    m->ahead = (uint32_t)advance->ahead;
    if (!advance->with_prompt) return;
    m->prompt_ids = (uint32_t *)r->spec.tokens;
    m->n_prompt_ids = (size_t)r->spec.n_tokens;
    m->salt = r->spec.prefix_salt;
}

static void send_advances(void *link, const struct draft_advance *advances, int n)
{
    struct node_link *node = link;
    Forepack__Cluster__V1__Advance *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__Advance **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        advance_fill(&advances[i], list[i]);
    }
    Forepack__Cluster__V1__Advances all = FOREPACK__CLUSTER__V1__ADVANCES__INIT;
    all.advances = list;
    all.n_advances = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES;
    message.advances = &all;
    node->ops->send(node, &message);
    free(list);
    free(items);
}

static void send_drafts(void *link, const struct node_draft *drafts, int n)
{
    struct node_link *node = link;
    Forepack__Cluster__V1__Draft *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__Draft **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__cluster__v1__draft__init(list[i]);
        list[i]->request = drafts[i].request;
        list[i]->from = (uint32_t)drafts[i].from;
        list[i]->token_ids = (uint32_t *)drafts[i].tokens; // never negative
        list[i]->n_token_ids = (size_t)drafts[i].n;
    }
    Forepack__Cluster__V1__Drafts all = FOREPACK__CLUSTER__V1__DRAFTS__INIT;
    all.drafts = list;
    all.n_drafts = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS;
    message.drafts = &all;
    node->ops->send(node, &message);
    free(list);
    free(items);
}

// --- everything else

static void send_cancel(void *link, const uint64_t *numbers, int n)
{
    Forepack__Cluster__V1__Cancel cancel = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    cancel.requests = (uint64_t *)numbers;
    cancel.n_requests = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &cancel;
    struct node_link *node = link;
    node->ops->send(node, &message);
}

static void send_drain(void *link)
{
    Forepack__Cluster__V1__Drain drain = FOREPACK__CLUSTER__V1__DRAIN__INIT;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAIN;
    message.drain = &drain;
    struct node_link *node = link;
    node->ops->send(node, &message);
}

static void node_lost(void *link, const char *reason)
{
    struct node_link *node = link;
    node->node = NULL;
    node->loading = NULL;
    node->ended = true;
    node->ops->finish(node, reason ? STATUS_UNAVAILABLE : STATUS_OK, reason ? reason : "");
}

void node_link_core_ops(struct core_ops *ops)
{
    ops->send_score_bin = send_score_bin;
    ops->send_prefill_bin = send_prefill_bin;
    ops->send_cancel = send_cancel;
    ops->send_advances = send_advances;
    ops->send_drafts = send_drafts;
    ops->send_drain = send_drain;
    ops->node_lost = node_lost;
}
