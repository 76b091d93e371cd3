// SPDX-License-Identifier: Apache-2.0
// See address_counts.h. The table is a hash table with chains.
#include "lib/base/address_counts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"

enum { BUCKETS = 4096, FORGIVE_US = 1000000 }; // one offence is forgiven in FORGIVE_US

struct entry {
    struct in6_addr address;
    int count;
    struct entry *next;
    int64_t offended_us, barred_us; // clock that each offence moves by FORGIVE_US; end of being barred
    struct entry *older, *newer;    // in the list of offenders, while the count is 0
};

struct address_counts {
    pthread_mutex_t lock; // guards all members
    struct hash_key key;
    int max;
    struct entry *bucket[BUCKETS];
    struct entry *oldest, *newest; // offenders without a connection
    int n_offenders;
};

struct address_counts *address_counts_open(int max)
{
    if (max <= 0) return NULL;
    struct address_counts *a = mem_alloc(sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->key = hash_key_random();
    a->max = max;
    return a;
}

void address_counts_close(struct address_counts *a)
{
    if (!a) return;
    for (int i = 0; i < BUCKETS; i++)
        for (struct entry *e = a->bucket[i], *next; e; e = next) {
            next = e->next;
            free(e);
        }
    pthread_mutex_destroy(&a->lock);
    free(a);
}

// Returns the network of an address: a client with IPv6 can choose addresses from a whole /64.
static struct in6_addr network_of(const struct in6_addr *address)
{
    struct in6_addr network = *address;
    if (!IN6_IS_ADDR_V4MAPPED(address)) memset(network.s6_addr + 8, 0, 8);
    return network;
}

// Returns the link that points to the entry, or the NULL link where a new entry goes. The caller holds the lock.
static struct entry **find(struct address_counts *a, const struct in6_addr *network)
{
    struct entry **e = &a->bucket[hash_bytes(&a->key, network, sizeof *network) % BUCKETS];
    while (*e && memcmp(&(*e)->address, network, sizeof *network) != 0)
        e = &(*e)->next;
    return e;
}

// --- offenders; the caller holds the lock

static void offender_add(struct address_counts *a, struct entry *e)
{
    e->older = a->newest;
    e->newer = NULL;
    *(e->older ? &e->older->newer : &a->oldest) = e;
    a->newest = e;
    a->n_offenders++;
}

static void offender_remove(struct address_counts *a, struct entry *e)
{
    *(e->older ? &e->older->newer : &a->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &a->newest) = e->older;
    a->n_offenders--;
}

static void entry_free(struct entry **link)
{
    struct entry *gone = *link;
    *link = gone->next;
    free(gone);
}

// Keeps an entry whose last connection has ended if the address has offended, otherwise frees it.
static void entry_rest(struct address_counts *a, struct entry **link)
{
    if (!(*link)->offended_us) {
        entry_free(link);
        return;
    }
    offender_add(a, *link);
    if (a->n_offenders <= OFFENDERS_MAX) return;
    struct entry *oldest = a->oldest;
    offender_remove(a, oldest);
    entry_free(find(a, &oldest->address));
}

// --- public

bool address_counts_add(struct address_counts *a, const struct in6_addr *address)
{
    if (!a) return true;
    struct in6_addr network = network_of(address);
    pthread_mutex_lock(&a->lock);
    struct entry **e = find(a, &network);
    if (!*e) {
        *e = mem_alloc(sizeof **e);
        (*e)->address = network;
    }
    bool admitted = (*e)->count < a->max;
    if (admitted && (*e)->count++ == 0 && (*e)->offended_us) offender_remove(a, *e);
    pthread_mutex_unlock(&a->lock);
    return admitted;
}

void address_counts_remove(struct address_counts *a, const struct in6_addr *address)
{
    if (!a) return;
    struct in6_addr network = network_of(address);
    pthread_mutex_lock(&a->lock);
    struct entry **e = find(a, &network);
    if (*e && --(*e)->count == 0) entry_rest(a, e);
    pthread_mutex_unlock(&a->lock);
}

void address_counts_offend(struct address_counts *a, const struct in6_addr *address, int64_t now_us)
{
    if (!a) return;
    struct in6_addr network = network_of(address);
    pthread_mutex_lock(&a->lock);
    struct entry *e = *find(a, &network);
    if (e && e->count) {
        if (e->offended_us < now_us) e->offended_us = now_us;
        e->offended_us += FORGIVE_US;
        if (e->offended_us > now_us + OFFENCES_MAX * (int64_t)FORGIVE_US) e->barred_us = now_us + BARRED_US;
    }
    pthread_mutex_unlock(&a->lock);
}

bool address_counts_is_barred(struct address_counts *a, const struct in6_addr *address, int64_t now_us)
{
    if (!a) return false;
    struct in6_addr network = network_of(address);
    pthread_mutex_lock(&a->lock);
    const struct entry *e = *find(a, &network);
    bool barred = e && now_us < e->barred_us;
    pthread_mutex_unlock(&a->lock);
    return barred;
}

bool address_counts_are_same(const struct in6_addr *a, const struct in6_addr *b)
{
    struct in6_addr one = network_of(a), other = network_of(b);
    return memcmp(&one, &other, sizeof one) == 0;
}

struct sockaddr_in6 address_to_ipv6(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6) return *(const struct sockaddr_in6 *)address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = v4->sin_port};
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(mapped.sin6_addr.s6_addr + 12, &v4->sin_addr, 4);
    return mapped;
}
