// SPDX-License-Identifier: Apache-2.0
// A fake worker group that composes passes like worker/pass.c: a row for each decoding sequence, then prompts in the
// order of arrival up to the token budget. Short prompts get half of the pass while a long one is computed. It has no
// KV blocks, prefix cache, pacing or time: a test counts passes.
#pragma once

#include "tests/core_fixture.h"

enum { PASS_SEQUENCES_MAX = 1024 };

struct pass_sequence {
    struct client *client;
    int rows, pass_rows; // prompt rows left; prompt rows in this pass
    int tokens, max_tokens;
};

struct pass_group {
    struct fixture *f;
    struct fake_node *node;
    int token_budget;
    struct pass_sequence sequences[PASS_SEQUENCES_MAX]; // in the order of arrival
    int n;
    int passes;
};

static inline void pass_group_receive(struct pass_group *g)
{
    for (int i = 0; i < g->node->n_requests; i++) {
        bool known = false;
        for (int k = 0; k < g->n && !known; k++)
            known = g->sequences[k].client->number == g->node->requests[i];
        if (known) continue;
        struct client *client = fixture_find(g->f, g->node->requests[i]);
        ck_cheap(g->n < PASS_SEQUENCES_MAX);
        g->sequences[g->n++] = (struct pass_sequence){
            .client = client, .rows = client->r->spec.n_tokens, .max_tokens = client->r->spec.sampling.max_tokens};
    }
}

static inline int pass_add_rows(struct pass_sequence *q, int room)
{
    int rows = q->rows - q->pass_rows < room ? q->rows - q->pass_rows : room;
    q->pass_rows += rows;
    return rows;
}

static inline void pass_compose_rows(struct pass_group *g)
{
    int room = g->token_budget, first = -1, shortest = -1;
    for (int i = 0; i < g->n; i++) {
        g->sequences[i].pass_rows = 0;
        room -= g->sequences[i].rows == 0;
        if (first < 0 && g->sequences[i].rows > 0) first = i;
    }
    if (first < 0) return;
    if (g->sequences[first].rows > room) {
        int share = room - room / 2;
        room -= share;
        for (int i = first + 1; i < g->n; i++) {
            struct pass_sequence *q = &g->sequences[i];
            if (q->rows <= share) share -= pass_add_rows(q, share);
            if (q->pass_rows < q->rows && (shortest < 0 || q->rows < g->sequences[shortest].rows)) shortest = i;
        }
        if (shortest >= 0) share -= pass_add_rows(&g->sequences[shortest], share);
        room += share;
    }
    for (int i = 0; i < g->n; i++)
        room -= pass_add_rows(&g->sequences[i], room);
}

// Runs one pass: each sequence with no rows left gets a token, and complete sequences end.
static inline void pass_group_run(struct pass_group *g)
{
    pass_group_receive(g);
    pass_compose_rows(g);
    g->passes++;
    int n = g->n;
    g->n = 0;
    for (int i = 0; i < n; i++) {
        struct pass_sequence q = g->sequences[i];
        q.rows -= q.pass_rows;
        bool token = q.rows == 0, last = token && q.tokens + 1 == q.max_tokens;
        int at = q.tokens;
        q.tokens += token;
        if (!last) g->sequences[g->n++] = q; // before the step, which brings new requests
        if (token) fake_node_step(g->f, g->node, q.client, at, 1, last ? FINISH_REASON_LENGTH : -1);
    }
}
