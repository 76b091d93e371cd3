// SPDX-License-Identifier: Apache-2.0
#include "tests/core_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"

static struct fixture *current; // a test has one fixture

// --- messages of the core to nodes

static void check_attached(const struct fake_node *node)
{
    ck_cheap(node->node);
    ck_cheap(!node->lost);
}

static void remember_bin(struct fake_node *node, struct request *const *requests, int n, enum request_state state)
{
    check_attached(node);
    ck_cheap(n >= 1);
    node->bins++;
    node->last_bin_items = n;
    node->last_bin_rows = 0;
    for (int i = 0; i < n; i++) {
        const struct request *r = requests[i];
        ck_cheap(r->state == state);
        ck_cheap(r->account.node == node->node);
        bool score = state == REQUEST_SCORING;
        node->last_bin_rows += score ? r->spec.n_tokens : r->usage.kept_tokens + r->usage.completion_tokens;
        ck_cheap(node->n_requests < NODE_REQUESTS_MAX);
        node->requests[node->n_requests++] = r->number;
    }
}

static void send_score_bin(void *link, uint64_t bin, struct request *const *requests, int n)
{
    remember_bin(link, requests, n, REQUEST_SCORING);
}

static void send_prefill_bin(void *link, uint64_t bin, struct request *const *requests, int n)
{
    remember_bin(link, requests, n, REQUEST_PACKED);
    for (int i = 0; i < n; i++) {
        int kept = 0;
        for (int k = 0; k < requests[i]->n_kept_ranges; k++)
            kept += requests[i]->kept[k].last - requests[i]->kept[k].first + 1;
        ck_cheap(kept == requests[i]->usage.kept_tokens);
    }
}

static bool node_has(const struct fake_node *node, uint64_t number)
{
    for (int i = 0; i < node->n_requests; i++)
        if (node->requests[i] == number) return true;
    return false;
}

static void send_cancel(void *link, const uint64_t *numbers, int n)
{
    struct fake_node *node = link;
    check_attached(node);
    for (int i = 0; i < n; i++) {
        if (node_has(node, numbers[i])) {
            fake_node_forget(node, numbers[i]);
            node->cancels++;
        } else {
            ck_cheap(node->is_speculator); // the speculator may hold the prompt after its score
            node->releases++;
        }
    }
}

static void send_advances(void *link, const struct draft_advance *advances, int n)
{
    struct fake_node *node = link;
    check_attached(node);
    ck_cheap(n >= 1);
    for (int i = 0; i < n; i++) {
        const struct request *r = advances[i].request;
        ck_cheap(advances[i].from >= 0);
        ck_cheap(advances[i].from < r->usage.completion_tokens);
        ck_cheap(advances[i].ahead >= 1);
        node->last_advance = (struct fake_advance){.request = r->number,
                                                   .from = advances[i].from,
                                                   .n = r->usage.completion_tokens - advances[i].from,
                                                   .ahead = advances[i].ahead,
                                                   .with_prompt = advances[i].with_prompt};
    }
    node->advances += n;
    node->advance_messages++;
}

static void send_drafts(void *link, const struct node_draft *drafts, int n)
{
    struct fake_node *node = link;
    check_attached(node);
    ck_cheap(n >= 1);
    for (int i = 0; i < n; i++) {
        ck_cheap(drafts[i].n >= 1);
        ck_cheap(drafts[i].n <= NODE_DRAFT_MAX);
        node->last_draft = drafts[i];
        node->last_draft.tokens = node->draft_tokens;
        memcpy(node->draft_tokens, drafts[i].tokens, (size_t)drafts[i].n * sizeof *drafts[i].tokens);
    }
    node->drafts += n;
}

static void send_drain(void *link)
{
    struct fake_node *node = link;
    ck_cheap(!node->lost);
    node->drains++;
}

static void node_lost(void *link, const char *reason)
{
    struct fake_node *node = link;
    check_attached(node);
    ck_cheap(!reason || *reason);
    node->lost = true;
    node->node = NULL;
    node->n_requests = 0;
}

static void ready_changed(void *user, bool ready)
{
    struct fixture *f = user;
    ck_cheap(f->ready != ready);
    f->ready = ready;
    f->ready_changes++;
}

// --- messages of the core to clients

static bool client_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct client *client = user;
    ck_cheap(n >= 1);
    ck_cheap(client->ends == 0);
    int used = n;
    bool stopped = client->stop_after && client->n_tokens + n >= client->stop_after;
    if (stopped) used = client->stop_after - client->n_tokens;
    ck_cheap(client->n_tokens + used <= CLIENT_TOKENS_MAX);
    memcpy(client->tokens + client->n_tokens, tokens, (size_t)used * sizeof *tokens);
    client->n_tokens += used;
    *n_used_p = used;
    return stopped;
}

static void client_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct client *client = user;
    client->ends++;
    client->reason = reason;
    client->status = status;
    client->usage = r->usage;
    client->timing = r->timing;
    client->skip = r->skip;
    snprintf(client->message, sizeof client->message, "%s", message);
    client->n_kept = r->n_kept_ranges < 16 ? r->n_kept_ranges : 16;
    if (client->n_kept) memcpy(client->kept, r->kept, (size_t)client->n_kept * sizeof *r->kept);
    client->importance = r->importance;
    if (r->importance) client->importance_0 = r->importance[0];
    client->r = NULL;
    current->ended++;
    ck_cheap(client->ends == 1);
    ck_cheap(r->usage.completion_tokens == client->n_tokens);
    bool good = reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH;
    ck_cheap(good == (status == STATUS_OK));
    ck_cheap(good == (*message == 0));
    ck_cheap(r->state == (good ? REQUEST_DONE : reason == FINISH_REASON_ERROR ? REQUEST_FAILED : REQUEST_CANCELLED));
    const struct request_timing *t = &r->timing;
    ck_cheap(t->queue_us >= 0);
    ck_cheap(t->score_us >= 0);
    ck_cheap(t->pack_wait_us >= 0);
    ck_cheap(t->prefill_us >= 0);
    ck_cheap(t->queue_us + t->score_us + t->pack_wait_us + t->prefill_us <= t->total_us);
}

// --- fixture

void fixture_init(struct fixture *f)
{
    log_setup("test", LOG_ERROR);
    memset(f, 0, sizeof *f);
    f->now_us = 100 * SECOND;
    f->options = (struct core_options){
        .max_queue_requests = 1000,
        .max_queue_tokens = 1000000,
        .max_wait_us = SECOND,
        .score_timeout_us = 2 * SECOND,
        .worker_grace_us = 5 * SECOND,
        .heartbeat_us = 1000 * SECOND,
        .min_tokens = 64,
        .tail_tokens = 16,
        .bins_ahead = 2,
        .tokenizer_fingerprint = 77,
        .vocab_size = VOCAB,
        .hash_key = {1, 2},
    };
    current = f;
}

void fixture_start(struct fixture *f)
{
    struct core_ops ops = {.send_score_bin = send_score_bin,
                           .send_prefill_bin = send_prefill_bin,
                           .send_cancel = send_cancel,
                           .send_advances = send_advances,
                           .send_drafts = send_drafts,
                           .send_drain = send_drain,
                           .node_lost = node_lost,
                           .ready_changed = ready_changed,
                           .user = f};
    f->c = core_create(&f->options, &ops);
}

void fixture_stop(struct fixture *f)
{
    core_free(f->c);
    ck_assert_int_eq(f->ended, f->submitted);
    for (struct client *client; (client = f->clients);) {
        f->clients = client->next;
        ck_cheap(!client->number || client->ends == 1);
        free(client);
    }
    for (int i = 0; i < f->n_nodes; i++)
        free(f->nodes[i]);
}

enum { TICKS_MAX = 10000 };

// Ticks until no work is due. A core that always asks for another tick would make the loop spin.
static void tick(struct fixture *f)
{
    int ticks = 0;
    do {
        ck_cheap(ticks++ < TICKS_MAX);
        core_tick(f->c, f->now_us);
    } while (core_next_deadline_us(f->c) <= f->now_us);
}

void fixture_advance(struct fixture *f, int64_t us)
{
    int64_t until_us = f->now_us + us, next_us;
    while ((next_us = core_next_deadline_us(f->c)) < until_us) {
        if (next_us > f->now_us) f->now_us = next_us;
        tick(f);
    }
    f->now_us = until_us;
    tick(f);
}

struct node_hello fixture_hello(enum node_role role, const char *id)
{
    struct node_hello hello = {
        .host = "here",
        .dtype = "f32",
        .version = "0",
        .role = role,
        .ranks = 1,
        .stages = 1,
        .model_fingerprint = 5,
        .tokenizer_fingerprint = 77,
        .vocab_size = VOCAB,
        .context_tokens = 4096,
        .token_budget = 512,
        .block_tokens = 16,
        .kv_blocks = 1024,
        .max_seqs = 64,
    };
    snprintf(hello.node_id, sizeof hello.node_id, "%s", id);
    return hello;
}

struct fake_node *fixture_attach(struct fixture *f, const struct node_hello *hello)
{
    struct fake_node *node = mem_alloc(sizeof *node);
    ck_assert_int_lt(f->n_nodes, 64);
    f->nodes[f->n_nodes++] = node;
    snprintf(node->id, sizeof node->id, "%.31s", hello->node_id);
    node->is_speculator = hello->role == NODE_SPECULATOR;
    enum status status = core_attach(f->c, hello, node, f->now_us, &node->node);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    fixture_advance(f, 0);
    return node;
}

void fixture_detach(struct fixture *f, struct fake_node *node)
{
    struct core_node *gone = node->node;
    node->node = NULL;
    node->n_requests = 0;
    core_detach(f->c, gone, "its stream ended", f->now_us);
    fixture_advance(f, 0);
}

struct client *fixture_request(struct fixture *f, int n_tokens, int max_tokens)
{
    struct client *client = mem_alloc(sizeof *client);
    struct request *r = request_create();
    client->r = r;
    client->number = r->number;
    if (!f->first_number) f->first_number = r->number;
    client->next = f->clients;
    f->clients = client;
    r->spec.tokens = mem_alloc_array((size_t)n_tokens, sizeof *r->spec.tokens);
    r->spec.n_tokens = n_tokens;
    sampling_defaults(&r->spec.sampling);
    r->spec.sampling.max_tokens = max_tokens;
    r->spec.arrived_us = f->now_us;
    r->sink.tokens = client_tokens;
    r->sink.done = client_done;
    r->sink.user = client;
    request_set_state(r, REQUEST_TOKENISED);
    return client;
}

void fixture_submit(struct fixture *f, struct client *client)
{
    f->submitted++;
    core_submit(f->c, client->r, f->now_us);
}

double fixture_predicted_us(struct fixture *f, int n_tokens)
{
    struct client *client = fixture_request(f, n_tokens, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    struct estimate estimate;
    ck_assert(estimate_first_token(&f->c->view, &client->r->sched, false, f->now_us, &estimate));
    f->submitted++;
    core_submit(f->c, client->r, f->now_us);
    core_cancel(f->c, client->number, f->now_us);
    return estimate.wait_us + estimate.own_us;
}

struct client *fixture_send(struct fixture *f, int n_tokens, int max_tokens)
{
    struct client *client = fixture_request(f, n_tokens, max_tokens);
    client->r->spec.prefill.mode = PREFILL_OFF;
    fixture_submit(f, client);
    fixture_advance(f, 0);
    return client;
}

struct client *fixture_put(struct fixture *f, const char *tenant, int n_tokens, int priority)
{
    struct client *client = fixture_request(f, n_tokens, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.priority = priority;
    client->r->spec.tenant = tenant ? mem_string(tenant) : NULL;
    fixture_submit(f, client);
    return client;
}

struct client *fixture_put_with_head(struct fixture *f, int head, int text, int n_tokens, const char *tenant)
{
    struct client *client = fixture_request(f, n_tokens, 4);
    client->r->spec.prefill.mode = PREFILL_OFF;
    client->r->spec.tenant = tenant ? mem_string(tenant) : NULL;
    for (int i = 0; i < n_tokens; i++)
        client->r->spec.tokens[i] =
            i < head ? 1 + text : 100 + (int)((i % 2 ? client->number / 900 : client->number) % 900);
    fixture_submit(f, client);
    return client;
}

struct client *fixture_find(const struct fixture *f, uint64_t number)
{
    struct client *client = f->clients;
    while (client && client->number != number)
        client = client->next;
    return client;
}

bool fake_node_has(const struct fake_node *node, const struct client *client)
{
    return node_has(node, client->number);
}

void fake_node_forget(struct fake_node *node, uint64_t number)
{
    for (int i = 0; i < node->n_requests; i++) {
        if (node->requests[i] != number) continue;
        memmove(&node->requests[i], &node->requests[i + 1], (size_t)(--node->n_requests - i) * sizeof *node->requests);
        return;
    }
    ck_abort_msg("%s does not have request %llu", node->id, (unsigned long long)number);
}

void fake_node_step(struct fixture *f, struct fake_node *node, struct client *client, int first, int n, int finish)
{
    int32_t tokens[CLIENT_TOKENS_MAX];
    for (int i = 0; i < n; i++)
        tokens[i] = first + i;
    struct sequence_result result = {
        .request = client->number, .tokens = tokens, .n_tokens = n, .finished = finish >= 0};
    if (finish >= 0) {
        result.reason = (enum finish_reason)finish;
        if (finish == FINISH_REASON_ERROR) result.error = "out of paper";
        fake_node_forget(node, client->number);
    }
    core_step(f->c, node->node, &result, 1, f->now_us);
    fixture_advance(f, 0);
}

void fake_node_finish_oldest_bin(struct fixture *f, struct fake_node *node)
{
    struct client *in[64];
    const struct core_bin *bin = fixture_find(f, node->requests[0])->r->account.bin;
    int n = 0;
    for (int i = 0; i < node->n_requests; i++) {
        struct client *client = fixture_find(f, node->requests[i]);
        if (client->r->account.bin == bin) in[n++] = client;
    }
    for (int i = 0; i < n; i++)
        fake_node_step(f, node, in[i], 0, 1, FINISH_REASON_STOP);
}

void fake_node_score(struct fixture *f, struct fake_node *node, struct client *client, int first, int last)
{
    struct token_range kept = {first, last};
    struct score_result result = {.request = client->number, .kept = &kept, .n_kept = 1};
    fake_node_forget(node, client->number);
    core_scored(f->c, node->node, &result, f->now_us);
    fixture_advance(f, 0);
}

struct core_status fixture_status(const struct fixture *f)
{
    struct core_status status;
    core_get_status(f->c, &status);
    return status;
}
