// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

struct grammar_cache {
    pthread_mutex_t mutex;                              // guards the members below
    struct grammar_spec entries[GRAMMAR_CACHE_ENTRIES]; // [n] owned; the most recently used entry is first
    int n;
    size_t bytes; // size of all texts
};

struct grammar_cache *grammar_cache_create(void)
{
    struct grammar_cache *cache = mem_alloc(sizeof *cache);
    pthread_mutex_init(&cache->mutex, NULL);
    return cache;
}

void grammar_cache_free(struct grammar_cache *cache)
{
    if (!cache) return;
    for (int i = 0; i < cache->n; i++)
        grammar_spec_free(&cache->entries[i]);
    pthread_mutex_destroy(&cache->mutex);
    free(cache);
}

// --- mutex held

static void put_first(struct grammar_cache *cache, int from, struct grammar_spec spec)
{
    memmove(&cache->entries[1], &cache->entries[0], (size_t)from * sizeof spec);
    cache->entries[0] = spec;
}

static bool find(struct grammar_cache *cache, const struct grammar_spec *spec)
{
    for (int i = 0; i < cache->n; i++) {
        if (!grammar_specs_equal(&cache->entries[i], spec)) continue;
        put_first(cache, i, cache->entries[i]);
        return true;
    }
    return false;
}

static void forget_last(struct grammar_cache *cache)
{
    struct grammar_spec *last = &cache->entries[--cache->n];
    cache->bytes -= last->text_bytes;
    grammar_spec_free(last);
}

static void add(struct grammar_cache *cache, const struct grammar_spec *spec)
{
    while (cache->n == GRAMMAR_CACHE_ENTRIES || (cache->n && cache->bytes + spec->text_bytes > GRAMMAR_CACHE_BYTES))
        forget_last(cache);
    put_first(cache, cache->n++, grammar_spec_copy(spec));
    cache->bytes += spec->text_bytes;
}

// --- any thread

bool grammar_cache_has(struct grammar_cache *cache, const struct grammar_spec *spec)
{
    pthread_mutex_lock(&cache->mutex);
    bool found = find(cache, spec);
    pthread_mutex_unlock(&cache->mutex);
    return found;
}

void grammar_cache_add(struct grammar_cache *cache, const struct grammar_spec *spec)
{
    pthread_mutex_lock(&cache->mutex);
    if (!find(cache, spec)) add(cache, spec); // another thread may have added it meanwhile
    pthread_mutex_unlock(&cache->mutex);
}
