// SPDX-License-Identifier: Apache-2.0
#include "sim/placement.h"

#include <stdlib.h>

#include "engine/block_manager.h"
#include "sim/cached.h"
#include "sim/client_state.h"
#include "sim/faults.h"
#include "sim/node.h"
#include "sim/oracle_fair.h"
#include "sim/oracle_ledger.h"
#include "sim/router.h"

enum { OPTIONS_BYTES = 1024 };

// Most times that a request is sent to worker groups without a token: its third loss in a row ends it.
enum { SENDS_MAX = 3 };

static int blocks_max(const struct request *r, int n_tokens)
{
    return kv_blocks_for(n_tokens + r->spec.sampling.max_tokens);
}

// Compares the router's account of the request with what was sent to this node earlier.
static void rows_check(struct client *client, struct prefix_set *prefixes, const uint64_t *blocks, int n)
{
    const struct request *r = client->r;
    const struct node_hello *hello = &r->account.node->hello;
    int rows = sched_request_rows(&r->sched), cached = hello->prefix_cache ? prefix_set_match(prefixes, blocks, n) : 0;
    int most = (rows - 1) / KV_BLOCK_TOKENS;
    if (cached > most) cached = most;
    if (prefixes->blocks_placed <= hello->kv_blocks && r->account.rows != rows - KV_BLOCK_TOKENS * cached)
        world_fail(client->w, "request %" PRId64 ": %d rows are expected to be computed, must be %d", client->plan->id,
                   r->account.rows, rows - KV_BLOCK_TOKENS * cached);
    prefixes->blocks_placed += n;
    prefix_set_add(prefixes, blocks, n);
}

// Returns the most bytes of the sequence's message: five for each number, 14 for each range, plus the options.
static int64_t bytes_most(const Forepack__Cluster__V1__Sequence *sequence)
{
    return OPTIONS_BYTES + 5 * (int64_t)(sequence->n_token_ids + sequence->n_penalty_ids) +
           14 * (int64_t)sequence->n_kept;
}

// Returns the request of a shadow, or NULL if the number is not that of a shadow.
static struct request *shadow_of_number(const struct world *w, uint64_t number)
{
    struct request *r = request_table_find(&sim_router_core(w->router)->table, number);
    return r && r->shadow ? r : NULL;
}

// Returns the bytes that the request was expected to take in the message.
static int64_t request_sent(struct world *w, struct sim_node *node, struct prefix_set *prefixes, uint64_t number)
{
    struct client *client = client_of_number(w, number);
    struct request *r = client ? client->r : NULL;
    const struct request *of_shadow = shadow_of_number(w, number);
    if (of_shadow) { // shares nothing
        sim_node_computed(node)->blocks_placed += blocks_max(of_shadow, of_shadow->usage.kept_tokens);
        return sched_request_message_bytes(&of_shadow->sched);
    }
    if (!r || r->number != number || !r->account.node) {
        world_fail(w, "a bin has request number %llu, which does not wait for it", (unsigned long long)number);
        return 0;
    }
    const struct token_range whole = {0, request_score_prompt(r).n_tokens - 1};
    bool worker = r->account.node->hello.role == NODE_WORKER;
    uint64_t *blocks;
    int n = prefix_contents(r->spec.prefix_salt, r->spec.tokens, worker ? r->kept : &whole,
                            worker ? r->n_kept_ranges : 1, &blocks);
    if (r->spec.sampling.prompt_logprobs >= 0) n = 0; // the request shares nothing
    rows_check(client, prefixes, blocks, n);
    if (worker && r->spec.score_only)
        world_fail(client->w, "request %" PRId64 ": a worker group got it, though it asks only for a score",
                   client->plan->id);
    bool returns = r->usage.preemptions != client->preemptions; // its tenant was charged before the preemption
    int rows = worker ? r->usage.kept_tokens + r->usage.completion_tokens : request_score_prompt(r).n_tokens;
    if (!returns) oracle_ledger_rows(r, rows);
    if (worker && !returns) oracle_fair_served(w->fair, r, rows);
    if (worker && !returns && ++client->sends > SENDS_MAX)
        world_fail(w, "request %" PRId64 ": is sent again after two lost worker groups and the loss of a third one",
                   client->plan->id);
    client->preemptions = r->usage.preemptions;
    if (worker) client->placed_tokens = r->usage.completion_tokens;
    if (worker && client->plan->request.poison >> (client->placements++ & 31) & 1)
        fault_poison(w, node, client->plan->request.poison_us);
    struct prefix_set *computed = sim_node_computed(node);
    if (worker) {
        int most = (r->usage.kept_tokens - 1) / KV_BLOCK_TOKENS, found = prefix_set_match(computed, blocks, n);
        client->placed = (struct placement){node, sim_node_life(node), found < most ? found : most};
        if (client->received) client->placed.node = NULL;
        computed->blocks_placed += blocks_max(r, r->usage.kept_tokens + client->received);
    }
    free(blocks);
    return sched_request_message_bytes(&r->sched);
}

void placement_sent(struct world *w, struct sim_node *node, struct prefix_set *prefixes,
                    const Forepack__Cluster__V1__RouterMessage *message, size_t n_bytes)
{
    int64_t expected = 64;
    if (w->scenario->load) return; // the router's record of a large cache is shorter than the cache
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        for (size_t i = 0; i < message->prefill_bin->n_sequences; i++) {
            const Forepack__Cluster__V1__Sequence *sequence = message->prefill_bin->sequences[i];
            int64_t of_request = request_sent(w, node, prefixes, sequence->request);
            if (of_request < bytes_most(sequence))
                world_fail(w, "request %llu was expected to take %lld bytes of a bin, its numbers may take %lld",
                           (unsigned long long)sequence->request, (long long)of_request,
                           (long long)bytes_most(sequence));
            expected += of_request;
        }
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN) {
        for (size_t i = 0; i < message->score_bin->n_items; i++)
            expected += request_sent(w, node, prefixes, message->score_bin->items[i]->request);
    } else {
        return;
    }
    if ((int64_t)n_bytes > expected)
        world_fail(w, "a bin of %zu bytes was expected to take %lld", n_bytes, (long long)expected);
}

void placement_answered(struct client *client)
{
    struct sim_node *node = client->placed.node;
    const struct request *r = client->r;
    if (!node || client->tainted || client->placed.life != sim_node_life(node)) return;
    const struct node_hello *hello = &r->account.node->hello;
    struct prefix_set *computed = sim_node_computed(node);
    if (!hello->prefix_cache) return;
    if (computed->blocks_placed <= hello->kv_blocks &&
        r->usage.cached_tokens < KV_BLOCK_TOKENS * client->placed.cached_blocks)
        world_fail(client->w, "request %" PRId64 ": %d tokens were found in the cache, %d have been computed before",
                   client->plan->id, r->usage.cached_tokens, KV_BLOCK_TOKENS * client->placed.cached_blocks);
    uint64_t *blocks;
    int n = prefix_contents(r->spec.prefix_salt, r->spec.tokens, r->kept, r->n_kept_ranges, &blocks);
    prefix_set_add(computed, blocks, n);
    free(blocks);
}
