// SPDX-License-Identifier: Apache-2.0
// Counts tokens and requests of each tenant, for metrics. The first tenants have their own counts, and all further
// tenants count together, so that the number of series is bounded. Counts only grow. Only ledger.c writes them.
#pragma once

#include <stdint.h>

#include "lib/base/hash.h"
#include "router/core/measures.h"

#define TENANT_USAGE_OTHERS "(others)" // no API key can have a tenant of this name

struct tenant_usage {
    char *name;                                             // constant until tenant_usages_fini()
    uint64_t prompt_tokens, kept_tokens, completion_tokens; // as in struct core_totals
    uint64_t finished[FINISH_REASON_COUNT];                 // as in struct core_measures
};

struct tenant_usages {
    int max;                      // tenants that have their own counts; 0: tenants are not counted
    int n;                        // entries of `tenants`
    struct tenant_usage *tenants; // [max + 1]; the first counts all further tenants; entries do not move
    int *slots;                   // [n_slots] hash table of indices of `tenants`; 0: free
    uint64_t n_slots;             // power of two
    struct hash_key hash_key;
};

void tenant_usages_init(struct tenant_usages *usages, int max, const struct hash_key *key);
void tenant_usages_fini(struct tenant_usages *usages);

// Returns the counts of the tenant. NULL: tenants are not counted. `name` may be NULL.
struct tenant_usage *tenant_usages_find(struct tenant_usages *usages, const char *name);
