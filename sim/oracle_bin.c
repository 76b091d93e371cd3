// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_bin.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/request_table.h"
#include "sim/oracle_chain.h"
#include "sim/oracle_waiting.h"

// Checks that the live page shows the bin as the latest.
static void check_recent(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                         struct request *const *requests, int n)
{
    const struct recent_bin *recent = recent_bins_get(&c->recent[node->hello.role], 0);
    int64_t rows = 0;
    HOLDS(recent && recent->id == bin && recent->n == n && recent->sent_us == c->view.now_us);
    if (!recent) return;
    HOLDS(strcmp(recent->node_id, node->hello.node_id) == 0 && recent->token_budget == node->hello.token_budget);
    for (int i = 0; i < n; i++) {
        const struct recent_prompt *prompt = &recent->prompts[i];
        rows += requests[i]->account.rows;
        HOLDS(i >= RECENT_BIN_PROMPTS ||
              (prompt->tokens == requests[i]->spec.n_tokens && prompt->kept == requests[i]->usage.kept_tokens &&
               prompt->rows == requests[i]->account.rows));
    }
    // with a prefix cache, the router's record of the cache may have forgotten prefixes meanwhile
    HOLDS(node->sched.prefixes || recent->rows == rows);
}

void oracle_bin(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                const uint64_t *numbers, int n)
{
    if (!node || !n) return;
    const struct node_account *account = &node->sched.account;
    if (node->hello.role == NODE_WORKER)
        HOLDS(account->kv_blocks <= node->hello.kv_blocks && account->requests.count <= node->hello.max_seqs);
    struct request **requests = mem_alloc_array((size_t)n, sizeof(struct request *));
    for (int i = 0; i < n; i++)
        requests[i] = request_table_find(&c->table, numbers[i]);
    check_recent(w, c, node, bin, requests, n);
    for (int i = 0; i < n; i++)
        oracle_chain(w, c, requests[i], node->hello.role);
    free(requests);
}
