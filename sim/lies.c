// SPDX-License-Identifier: Apache-2.0
#include "sim/lies.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;

static bool one_in(struct random_source *random, int n)
{
    return random_below(random, n) == 0;
}

static uint64_t any_number(struct random_source *random)
{
    switch (random_below(random, 4)) {
    case 0: return 0;
    case 1: return (uint64_t)random_below(random, 1000);
    case 2: return UINT64_MAX;
    default: return random_next(random);
    }
}

// --- one kind of lie in an unpacked message

static void lie_costs(struct random_source *random, node_message *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP) {
        m->step->step_us = (uint32_t)any_number(random);
        m->step->rows = (uint32_t)any_number(random);
        m->step->pairs = any_number(random);
        m->step->latency_us = (uint32_t)m->step->pairs; // also any number
    } else if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED) {
        m->scored->pass_us = (uint32_t)any_number(random);
        m->scored->rows = (uint32_t)any_number(random);
        m->scored->pairs = any_number(random);
    }
}

static void lie_load(struct random_source *random, node_message *m)
{
    if (m->kind_case != FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT) return;
    m->heartbeat->kv_blocks_free = (uint32_t)any_number(random);
    m->heartbeat->running = (uint32_t)any_number(random);
    m->heartbeat->waiting = (uint32_t)any_number(random);
    m->heartbeat->held_prompts = (uint32_t)any_number(random);
    m->heartbeat->held_kv_blocks = (uint32_t)any_number(random);
}

static void one_token_more(Forepack__Cluster__V1__SequenceResult *r)
{
    uint32_t *ids = mem_alloc_array(r->n_token_ids + 1, sizeof *ids);
    if (r->n_token_ids) memcpy(ids, r->token_ids, r->n_token_ids * sizeof *ids);
    free(r->token_ids);
    r->token_ids = ids;
    r->n_token_ids++;
}

static void lie_result(enum lie lie, struct random_source *random, Forepack__Cluster__V1__SequenceResult *r)
{
    static char error[] = "broken \xff\xfe";
    if (lie == LIE_CACHED) {
        r->cached_tokens = (uint32_t)any_number(random);
        r->draft_tokens = (uint32_t)any_number(random);
        r->draft_accepted_tokens = (uint32_t)any_number(random);
    }
    if (lie == LIE_IDS) r->request = one_in(random, 2) ? any_number(random) : r->request + 1;
    if (lie == LIE_IDS && r->request % 2) r->bin_id = 0; // of any attempt
    if (lie == LIE_TOKENS) {
        for (size_t i = 0; i < r->n_token_ids; i++)
            r->token_ids[i] = one_in(random, 3) ? (uint32_t)any_number(random) : r->token_ids[i] ^ 1;
        if (one_in(random, 3)) one_token_more(r);
    }
    if (lie != LIE_ENDS || !one_in(random, 3)) return;
    r->finish = (Forepack__Cluster__V1__Finish)(1 + random_below(random, 5)); // may be unknown to this version
    if (one_in(random, 2) && !*r->error) r->error = mem_string(error);
    if (one_in(random, 2)) r->n_token_ids = 0;
}

static void lie_rate(struct random_source *random, Forepack__Cluster__V1__ScoreResult *r)
{
    static const double rates[] = {-1, 0, 0.01, 0.05, 0.3, 0.99, 1, 1.01, NAN, INFINITY};
    if (one_in(random, 2)) r->keep_rate = rates[random_below(random, sizeof rates / sizeof *rates)];
    if (one_in(random, 2)) // may be unknown to this version
        r->rate_reason = (Forepack__Cluster__V1__RateReason)random_below(random, RATE_REASON_COUNT + 1);
}

static void lie_score(enum lie lie, struct random_source *random, Forepack__Cluster__V1__ScoreResult *r)
{
    if (lie == LIE_CACHED) r->cached_tokens = (uint32_t)any_number(random);
    if (lie == LIE_RATES) lie_rate(random, r);
    if (lie == LIE_IDS) r->request = one_in(random, 2) ? any_number(random) : r->request + 1;
    if (lie == LIE_TOKENS) {
        for (size_t i = 0; i < r->n_draft_ids; i++)
            r->draft_ids[i] = one_in(random, 8) ? (uint32_t)any_number(random) : r->draft_ids[i] ^ 1;
    }
    if (lie != LIE_KEPT) return;
    if (r->n_kept && one_in(random, 2)) {
        Forepack__Cluster__V1__Range *range = r->kept[random_below(random, (int)r->n_kept)];
        *(one_in(random, 2) ? &range->first : &range->last) = (uint32_t)any_number(random);
    } else if (r->n_importance) {
        r->importance[0] = NAN;
    }
}

static void lie_draft(enum lie lie, struct random_source *random, Forepack__Cluster__V1__Draft *d)
{
    if (lie == LIE_IDS) d->request = one_in(random, 2) ? any_number(random) : d->request + 1;
    if (lie == LIE_ENDS) d->released = one_in(random, 3);
    if (lie == LIE_TOKENS) {
        for (size_t i = 0; i < d->n_token_ids; i++)
            d->token_ids[i] = one_in(random, 8) ? (uint32_t)any_number(random) : d->token_ids[i] ^ 1;
    }
    if (lie != LIE_KEPT) return;
    if (one_in(random, 2)) d->from = (uint32_t)any_number(random);
    if (!one_in(random, 4)) return;
    d->n_token_ids = (size_t)random_below(random, 200);
    free(d->token_ids);
    d->token_ids = mem_alloc_array(d->n_token_ids, sizeof *d->token_ids);
}

static void lie_in(enum lie lie, struct random_source *random, node_message *m)
{
    if (lie == LIE_COSTS) lie_costs(random, m);
    if (lie == LIE_LOAD) lie_load(random, m);
    if (lie == LIE_SILENT && m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT)
        m->heartbeat->running = 1000; // it has lost none
    if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP) {
        for (size_t i = 0; i < m->step->n_results; i++)
            lie_result(lie, random, m->step->results[i]);
    } else if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED) {
        for (size_t i = 0; i < m->scored->n_results; i++)
            lie_score(lie, random, m->scored->results[i]);
    } else if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS) {
        for (size_t i = 0; i < m->drafts->n_drafts; i++)
            lie_draft(lie, random, m->drafts->drafts[i]);
    }
}

// --- sending

static void send_garbage(struct random_source *random, size_t n, lie_send_fn *send, void *arg)
{
    uint8_t *bytes = mem_alloc(n + 1);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)random_next(random);
    send(arg, bytes, n);
}

static void send_changed(enum lie lie, struct random_source *random, const uint8_t *bytes, size_t n, lie_send_fn *send,
                         void *arg)
{
    node_message *m = forepack__cluster__v1__node_message__unpack(NULL, n, bytes);
    lie_in(lie, random, m);
    size_t n_changed = forepack__cluster__v1__node_message__get_packed_size(m);
    uint8_t *changed = mem_alloc(n_changed);
    forepack__cluster__v1__node_message__pack(m, changed);
    forepack__cluster__v1__node_message__free_unpacked(m, NULL);
    send(arg, changed, n_changed);
}

static bool is_result(const uint8_t *bytes, size_t n)
{
    node_message *m = forepack__cluster__v1__node_message__unpack(NULL, n, bytes);
    bool result = m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP ||
                  m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED ||
                  m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS;
    forepack__cluster__v1__node_message__free_unpacked(m, NULL);
    return result;
}

void lie_send(enum lie lie, struct random_source *random, const uint8_t *bytes, size_t n, lie_send_fn *send, void *arg)
{
    if (lie == LIE_SILENT && is_result(bytes, n)) return;
    if (lie == LIE_LOSE && is_result(bytes, n) && one_in(random, 2)) return;
    if (lie == LIE_GARBAGE && one_in(random, 20)) send_garbage(random, n, send, arg);
    bool whole = lie == LIE_TWICE || lie == LIE_IDS || lie == LIE_GARBAGE || lie == LIE_LOSE;
    if (whole) send(arg, mem_copy(bytes, n), n);
    if (lie == LIE_TWICE) send(arg, mem_copy(bytes, n), n);
    if (!whole || lie == LIE_IDS) send_changed(lie, random, bytes, n, send, arg);
}
