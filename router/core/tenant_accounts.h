// SPDX-License-Identifier: Apache-2.0
// The waiting requests of each tenant, in all classes and pools together, to bound a tenant's part of the queue. If
// tenants have weights, all tenants without a weight share the account "". Only ledger.c writes the accounts. One
// thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/base/hash.h"

// Exists while a request of the tenant exists.
struct tenant_account {
    struct tenant_account *next; // next account in the hash bucket
    char *name;
    int refs;               // requests of the tenant that have not ended
    int waiting;            // requests of the tenant that are on no worker group
    int64_t waiting_tokens; // sum of request_queue_tokens() of these requests
};

struct tenant_accounts {
    struct tenant_account **buckets;
    size_t n_buckets;
    struct hash_key hash_key;
    int n;
};

void tenant_accounts_init(struct tenant_accounts *accounts, const struct hash_key *key);
void tenant_accounts_fini(struct tenant_accounts *accounts); // call when no account is left
const struct tenant_account *tenant_accounts_find(const struct tenant_accounts *accounts, const char *name); // or NULL
struct tenant_account *tenant_accounts_acquire(struct tenant_accounts *accounts, const char *name);
void tenant_accounts_release(struct tenant_accounts *accounts, struct tenant_account *account);
