// SPDX-License-Identifier: Apache-2.0
// Connections of each client address: a hash table with chains.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "http/internal.h"

enum { BUCKETS = 4096 };

struct entry {
    struct in6_addr address;
    int count;
    struct entry *next;
};

struct http_addresses {
    pthread_mutex_t lock; // guards everything
    struct hash_key key;
    int max;
    struct entry *bucket[BUCKETS];
};

struct http_addresses *http_addresses_open(int max)
{
    if (max <= 0) return NULL;
    struct http_addresses *a = mem_alloc(sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->key = hash_key_random();
    a->max = max;
    return a;
}

void http_addresses_close(struct http_addresses *a)
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

// A client with IPv6 has a whole /64 to choose addresses from.
static struct in6_addr network_of(const struct in6_addr *address)
{
    struct in6_addr network = *address;
    if (!IN6_IS_ADDR_V4MAPPED(address)) memset(network.s6_addr + 8, 0, 8);
    return network;
}

// Under the lock: where the entry's pointer is, or would be.
static struct entry **find(struct http_addresses *a, const struct in6_addr *network)
{
    struct entry **e = &a->bucket[hash_bytes(&a->key, network, sizeof *network) % BUCKETS];
    while (*e && memcmp(&(*e)->address, network, sizeof *network) != 0)
        e = &(*e)->next;
    return e;
}

bool http_addresses_add(struct http_addresses *a, const struct in6_addr *address)
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
    if (admitted) (*e)->count++;
    pthread_mutex_unlock(&a->lock);
    return admitted;
}

void http_addresses_remove(struct http_addresses *a, const struct in6_addr *address)
{
    if (!a) return;
    struct in6_addr network = network_of(address);
    pthread_mutex_lock(&a->lock);
    struct entry **e = find(a, &network);
    if (*e && --(*e)->count == 0) {
        struct entry *gone = *e;
        *e = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&a->lock);
}
