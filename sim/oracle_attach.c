// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_attach.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

// Makes one field of the hello wrong. Returns false if there is no field with this number.
static bool hello_spoil(struct node_hello *h, int way)
{
    bool worker = h->role == NODE_WORKER;
    bool is_other = way >= 10; // the hello of a second node, next to the attached node
    if (is_other) snprintf(h->node_id, sizeof h->node_id, "other");
    switch (way) {
    case 0: h->node_id[0] = 0; return true;
    case 1: snprintf(h->node_id, sizeof h->node_id, "a b"); return true;
    case 2: snprintf(h->node_id, sizeof h->node_id, "a\001"); return true;
    case 3: h->tokenizer_fingerprint++; return true;
    case 4: h->vocab_size++; return true;
    case 5: h->ranks = 0; return true;
    case 6: h->context_tokens = 0; return true;
    case 7: h->token_budget = INT_MAX; return true;
    case 8: h->max_seqs = 0; return true;
    case 9: h->instance++; return true; // another process with the same id
    case 10: h->backend[0] ^= 1; return true;
    case 11: h->dtype[0] ^= 1; return true;
    case 12: h->kv_dtype[0] ^= 1; return true;
    case 13: h->model_fingerprint++; return worker;
    case 14: h->kv_blocks = 0; return worker;
    case 15: h->block_tokens = 0; return worker;
    default: return false;
    }
}

void oracle_attach(struct world *w, struct core *c, const struct core_node *node)
{
    enum { WAYS = 16 };
    for (int way = 0; way < WAYS && !w->failed; way++) {
        struct node_hello hello = node->hello;
        struct core_node *attached = NULL;
        if (!hello_spoil(&hello, way)) continue;
        enum status status = core_attach(c, &hello, NULL, w->now_us, &attached);
        if (status != (way == 9 ? STATUS_EXISTS : STATUS_INVALID) || !*status_message())
            world_fail(w, "a node that must be refused (%d) was not: %s", way, status_name(status));
    }
}
