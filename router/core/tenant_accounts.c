// SPDX-License-Identifier: Apache-2.0
#include "router/core/tenant_accounts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"

void tenant_accounts_init(struct tenant_accounts *accounts, const struct hash_key *key)
{
    *accounts = (struct tenant_accounts){.hash_key = *key};
}

void tenant_accounts_fini(struct tenant_accounts *accounts)
{
    assert(accounts->n == 0);
    free(accounts->buckets);
}

static struct tenant_account **bucket_of(const struct tenant_accounts *accounts, const char *name)
{
    return &accounts->buckets[hash_text(&accounts->hash_key, name) & (accounts->n_buckets - 1)];
}

static struct tenant_account *account_find(const struct tenant_accounts *accounts, const char *name)
{
    if (!accounts->n) return NULL;
    struct tenant_account *account = *bucket_of(accounts, name);
    while (account && strcmp(account->name, name) != 0)
        account = account->next;
    return account;
}

const struct tenant_account *tenant_accounts_find(const struct tenant_accounts *accounts, const char *name)
{
    return account_find(accounts, name);
}

static void buckets_grow(struct tenant_accounts *accounts)
{
    struct tenant_account **old = accounts->buckets;
    size_t n_old = accounts->n_buckets;
    accounts->n_buckets = n_old ? 2 * n_old : 64;
    accounts->buckets = mem_alloc_array(accounts->n_buckets, sizeof(struct tenant_account *));
    for (size_t b = 0; b < n_old; b++) {
        for (struct tenant_account *account = old[b], *next; account; account = next) {
            next = account->next;
            struct tenant_account **bucket = bucket_of(accounts, account->name);
            account->next = *bucket;
            *bucket = account;
        }
    }
    free(old);
}

struct tenant_account *tenant_accounts_acquire(struct tenant_accounts *accounts, const char *name)
{
    struct tenant_account *account = account_find(accounts, name);
    if (!account) {
        if ((size_t)accounts->n >= accounts->n_buckets) buckets_grow(accounts);
        struct tenant_account **bucket = bucket_of(accounts, name);
        account = mem_alloc(sizeof *account);
        *account = (struct tenant_account){.next = *bucket, .name = mem_string(name)};
        *bucket = account;
        accounts->n++;
    }
    account->refs++;
    return account;
}

void tenant_accounts_release(struct tenant_accounts *accounts, struct tenant_account *account)
{
    if (--account->refs) return;
    assert(!account->waiting && !account->waiting_tokens);
    struct tenant_account **link = bucket_of(accounts, account->name);
    while (*link != account)
        link = &(*link)->next;
    *link = account->next;
    accounts->n--;
    free(account->name);
    free(account);
}
