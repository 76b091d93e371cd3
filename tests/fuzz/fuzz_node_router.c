// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "lib/base/utf8.h"
#include "tests/fuzz/fuzz_node.h"

// --- messages of the core to nodes

static struct client *client_of(uint64_t number)
{
    FUZZ_CHECK(number >= 1 && number <= (uint64_t)w.n_clients);
    struct client *client = &w.clients[number - 1];
    FUZZ_CHECK(!client->ends);
    return client;
}

int32_t node_prompt_token(const struct client *client, int i)
{
    return (i < client->head ? i : i + client->shift) % VOCAB;
}

static void note_sent(struct end *end, uint64_t request, size_t n)
{
    end->sent[end->n_sent++ % SENT_MAX] = (struct sent){request, (int)n};
}

static void check_prompt(const struct client *client, const uint32_t *ids, size_t n)
{
    FUZZ_CHECK(n <= (size_t)client->prompt_tokens);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(ids[i] == (uint32_t)node_prompt_token(client, (int)i));
}

static void score_item_sent(struct end *end, const Forepack__Cluster__V1__ScoreItem *m)
{
    const struct client *client = client_of(m->request);
    size_t n = m->n_token_ids, whole = (size_t)client->prompt_tokens;
    check_prompt(client, m->token_ids, n);
    FUZZ_CHECK(n >= 1 && m->hold == (client->is_drafted && n == whole) && !client->tokens);
    FUZZ_CHECK(m->budget_tokens <= n && m->tail_tokens <= n / 4);
    FUZZ_CHECK(m->quality_given_case ? client->has_quality && m->quality > 0 && m->quality <= 1 && !m->budget_tokens
                                     : m->keep_rate > 0 && m->keep_rate <= 1);
    for (size_t k = 0; k < m->n_pinned; k++)
        FUZZ_CHECK(m->pinned[k]->first <= m->pinned[k]->last && m->pinned[k]->last < n);
    note_sent(end, m->request, n);
}

// Checks a sequence: kept tokens, then the tokens that the client has received.
static void sequence_sent(struct end *end, const Forepack__Cluster__V1__Sequence *m)
{
    struct client *client = client_of(m->request);
    bool has_token[PROMPT_MAX] = {false};
    size_t at = 0;
    for (size_t k = 0; k < m->n_kept; k++) {
        FUZZ_CHECK(m->kept[k]->last < (uint32_t)client->prompt_tokens);
        for (uint32_t i = m->kept[k]->first; i <= m->kept[k]->last; i++, at++) {
            FUZZ_CHECK(!has_token[i] && m->token_ids[at] == (uint32_t)node_prompt_token(client, (int)i));
            has_token[i] = true;
        }
    }
    FUZZ_CHECK(at && m->generated == (uint32_t)client->tokens && at + m->generated == m->n_token_ids);
    for (uint32_t i = 0; i < m->generated; i++)
        FUZZ_CHECK(m->token_ids[at + i] == (uint32_t)client->answer[i]);
    FUZZ_CHECK(m->prompt_tokens == (uint32_t)client->prompt_tokens && m->drafts == client->is_drafted);
    FUZZ_CHECK(m->n_draft_ids <= (client->is_drafted ? LOOK_AHEAD_MAX : 0));
    for (size_t i = 0; i < m->n_draft_ids; i++)
        FUZZ_CHECK(m->draft_ids[i] < VOCAB);
    client->group = end;
    note_sent(end, m->request, at);
}

// Checks an advance: tokens that the client has received, each once.
static void advance_sent(struct end *end, const Forepack__Cluster__V1__Advance *m)
{
    struct client *client = client_of(m->request);
    FUZZ_CHECK(client->is_drafted && m->n_token_ids && m->from == (uint32_t)client->advanced);
    FUZZ_CHECK(m->ahead <= 2 * (LOOK_AHEAD_MAX + 1));
    client->advanced += (int)m->n_token_ids;
    FUZZ_CHECK(client->advanced == client->tokens);
    for (size_t i = 0; i < m->n_token_ids; i++)
        FUZZ_CHECK(m->token_ids[i] == (uint32_t)client->answer[m->from + i]);
    check_prompt(client, m->prompt_ids, m->n_prompt_ids);
    FUZZ_CHECK(!m->n_prompt_ids || (!m->from && m->n_prompt_ids == (size_t)client->prompt_tokens));
    note_sent(end, m->request, m->n_token_ids);
}

// Checks a draft of tokens that the client has not received.
static void draft_sent(const struct end *end, const Forepack__Cluster__V1__Draft *m)
{
    const struct client *client = client_of(m->request);
    FUZZ_CHECK(client->is_drafted && client->group == end && !m->released);
    FUZZ_CHECK(m->from == (uint32_t)client->tokens && m->n_token_ids >= 1 && m->n_token_ids <= NODE_DRAFT_MAX);
    for (size_t i = 0; i < m->n_token_ids; i++)
        FUZZ_CHECK(m->token_ids[i] < VOCAB);
}

static void work_sent(struct end *end, enum node_role role, const Forepack__Cluster__V1__RouterMessage *message)
{
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN:
        FUZZ_CHECK(role == NODE_SPECULATOR);
        for (size_t i = 0; i < message->score_bin->n_items; i++)
            score_item_sent(end, message->score_bin->items[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN:
        FUZZ_CHECK(role == NODE_WORKER);
        for (size_t i = 0; i < message->prefill_bin->n_sequences; i++)
            sequence_sent(end, message->prefill_bin->sequences[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_ADVANCES:
        FUZZ_CHECK(role == NODE_SPECULATOR);
        for (size_t i = 0; i < message->advances->n_advances; i++)
            advance_sent(end, message->advances->advances[i]);
        break;
    case FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS:
        FUZZ_CHECK(role == NODE_WORKER && message->drafts->n_drafts);
        for (size_t i = 0; i < message->drafts->n_drafts; i++)
            draft_sent(end, message->drafts->drafts[i]);
        break;
    default: break;
    }
}

static void end_send(struct node_link *link, const Forepack__Cluster__V1__RouterMessage *message)
{
    struct end *end = (struct end *)link;
    FUZZ_CHECK(end->open);
    uint8_t *bytes = malloc(forepack__cluster__v1__router_message__get_packed_size(message));
    FUZZ_CHECK(forepack__cluster__v1__router_message__pack(message, bytes));
    free(bytes);
    if (link->node) work_sent(end, link->node->hello.role, message);
}

static void end_finish(struct node_link *link, enum status status, const char *reason)
{
    ((struct end *)link)->finished = true;
}

static const char *end_peer(const struct node_link *link)
{
    return "fuzz";
}

const struct node_link_ops node_end_ops = {end_send, end_finish, end_peer};

// --- messages of the core to its clients

static bool client_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
{
    struct client *client = user;
    FUZZ_CHECK(n >= 1 && !client->ends && !client->logprobs_left);
    FUZZ_CHECK(client->tokens + n <= client->max_tokens);
    for (int i = 0; i < n; i++) {
        FUZZ_CHECK(tokens[i] >= 0 && tokens[i] < VOCAB);
        client->answer[client->tokens++] = tokens[i];
    }
    *n_used_p = n;
    return tokens[n - 1] == 7; // completes a stop string
}

static void client_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct client *client = user;
    client->logprobs_left -= n;
    FUZZ_CHECK(n >= 1 && !client->ends && !client->tokens && client->logprobs_left >= 0);
}

// Checks that the kept tokens are from the prompt, each once.
static void check_kept(const struct client *client, const struct request *r)
{
    struct token_range *kept;
    int n_ranges = request_sort_kept(r, &kept), n = 0, next = 0;
    for (int k = 0; k < n_ranges; k++) {
        FUZZ_CHECK(kept[k].first >= next && kept[k].last >= kept[k].first);
        next = kept[k].last + 1;
        n += next - kept[k].first;
    }
    free(kept);
    FUZZ_CHECK(next <= client->prompt_tokens && n == request_kept_tokens(r));
    FUZZ_CHECK(!n_ranges || (r->keep_rate > 0 && r->keep_rate <= 1));
}

static void client_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct client *client = user;
    const struct request_usage *u = &r->usage;
    FUZZ_CHECK(!client->ends++ && u->completion_tokens == client->tokens);
    FUZZ_CHECK((reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH) == (status == STATUS_OK));
    FUZZ_CHECK(utf8_valid(message, strlen(message), NULL) && (status == STATUS_OK) == !*message);
    FUZZ_CHECK(u->cached_tokens <= client->prompt_tokens + client->max_tokens);
    FUZZ_CHECK(u->draft_accepted_tokens >= 0 && u->draft_accepted_tokens <= u->draft_tokens);
    FUZZ_CHECK(u->draft_accepted_tokens <= u->completion_tokens);
    FUZZ_CHECK(u->frozen_tokens >= 0 && u->recalled_tokens >= 0 &&
               u->frozen_tokens + u->recalled_tokens <= u->kept_tokens);
    check_kept(client, r);
}

struct request_sink node_client_sink(struct client *client)
{
    return (struct request_sink){client_tokens, client_prompt_logprobs, client_done, client};
}

// --- accounts

static void check_node(const struct core_node *node)
{
    const struct node_account *account = &node->sched.account;
    int n_drafted = 0, n = 0;
    for (const struct request *r = node->drafted; r; r = r->drafting.next, n_drafted++)
        FUZZ_CHECK(r->drafting.node == node && request_is_drafted(r) && !w.clients[r->number - 1].ends);
    for (const struct sched_request *r = account->requests.first; r; r = r->next, n++)
        FUZZ_CHECK(request_of(r)->account.node == node && !w.clients[r->number - 1].ends);
    FUZZ_CHECK(n_drafted == node->n_drafted && n == account->requests.count);
    FUZZ_CHECK(node->draft_length >= 0 && node->draft_length <= LOOK_AHEAD_MAX);
    if (n) return;
    FUZZ_CHECK(!account->bins && !account->bin_tokens && !account->kv_blocks && !account->requests_in_bins);
}

void node_check_accounts(void)
{
    const struct core *c = w.core;
    int n = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        check_node(node);
    for (int i = 0; i < w.n_clients; i++)
        n += !w.clients[i].ends;
    FUZZ_CHECK(n == c->table.count);
    if (n) return;
    FUZZ_CHECK(!c->timers.count && !c->ledger.running && !c->view.reservation.request);
    for (int k = 0; k < QUEUE_CLASSES; k++)
        FUZZ_CHECK(!c->ledger.waiting[k].requests && !c->ledger.waiting[k].tokens);
    FUZZ_CHECK(!c->waiting[NODE_SPECULATOR].tenants.n && !c->waiting[NODE_WORKER].tenants.n);
}
