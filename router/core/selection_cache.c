// SPDX-License-Identifier: Apache-2.0
// A hash table with chained entries finds a selection. A ring of all entries in order of use says which to evict next.
#include "router/core/selection_cache.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { BYTES_PER_SLOT = 256 }; // about the size of an entry, so that a table slot has about one entry

struct entry {
    struct selection_key key;
    uint64_t scorer;
    struct entry *slot_next, *older, *newer;
    double keep_rate;
    enum rate_reason reason;
    int n_kept, n_draft;
    struct token_range kept[]; // [n_kept], followed in memory by the draft
};

struct selection_cache {
    struct hash_key keys[2];
    int64_t bytes, bytes_max;
    struct entry **slots; // [n_slots] a power of two
    uint64_t n_slots;
    struct entry ring; // sentinel: ring.newer is the least recently used entry, ring.older the most recently used one
};

struct selection_cache *selection_cache_create(int64_t bytes, const struct hash_key *key)
{
    struct selection_cache *cache = mem_alloc(sizeof *cache);
    cache->keys[0] = *key;
    cache->keys[1] = (struct hash_key){hash_number(key, 1), hash_number(key, 2)};
    cache->bytes_max = bytes;
    cache->n_slots = 1;
    while (cache->n_slots * BYTES_PER_SLOT < (uint64_t)bytes)
        cache->n_slots *= 2;
    cache->slots = mem_alloc_array(cache->n_slots, sizeof *cache->slots);
    cache->ring.older = cache->ring.newer = &cache->ring;
    return cache;
}

// --- the key

struct key_parts {
    uint64_t before, tokens, pinned, options, salt;
    double min_keep_rate;
    int64_t n_before, fresh, n_tokens, n_pinned, tail_tokens, whole;
};

// Hashes all prefill options except the mode. The mode decides if a prompt is scored, not which tokens are selected.
static uint64_t options_hash(const struct hash_key *key, const struct prefill *prefill)
{
    uint64_t hash = 0;
    for (const struct generation_field *field = prefill_fields; field->name; field++) {
        double value = generation_field_number(field, prefill);
        uint64_t link[2] = {hash};
        memcpy(&link[1], &value, sizeof value);
        hash = hash_bytes(key, link, sizeof link);
    }
    return hash;
}

static uint64_t key_hash(const struct hash_key *key, const struct request_spec *spec, const struct score_prompt *prompt,
                         uint64_t before, int tail_tokens, bool whole)
{
    size_t n_new = (size_t)(prompt->n_tokens - prompt->before);
    const struct key_parts parts = {
        .before = before,
        .tokens = hash_bytes(key, spec->tokens + prompt->before, n_new * sizeof *spec->tokens),
        .pinned = hash_bytes(key, prompt->pinned, (size_t)prompt->n_pinned * sizeof *prompt->pinned),
        .options = options_hash(key, &spec->prefill),
        .salt = spec->prefix_salt,
        .min_keep_rate = spec->prefill.min_keep_rate,
        .n_before = prompt->before,
        .fresh = prompt->fresh,
        .n_tokens = prompt->n_tokens,
        .n_pinned = prompt->n_pinned,
        .tail_tokens = tail_tokens,
        .whole = whole,
    };
    return hash_bytes(key, &parts, sizeof parts);
}

struct selection_key selection_key_make(const struct selection_cache *cache, const struct request_spec *spec,
                                        const struct score_prompt *prompt, const struct selection_key *before,
                                        int tail_tokens, bool whole)
{
    struct selection_key key;
    for (int i = 0; i < 2; i++)
        key.part[i] = key_hash(&cache->keys[i], spec, prompt, before ? before->part[i] : 0, tail_tokens, whole);
    return key;
}

// --- entries

static int64_t entry_bytes(int n_kept, int n_draft)
{
    return (int64_t)sizeof(struct entry) + (int64_t)n_kept * (int64_t)sizeof(struct token_range) +
           (int64_t)n_draft * (int64_t)sizeof(int32_t);
}

static int32_t *entry_draft(struct entry *entry)
{
    return (int32_t *)(entry->kept + entry->n_kept);
}

static struct entry **slot_of(const struct selection_cache *cache, const struct selection_key *key)
{
    struct entry **at = &cache->slots[key->part[0] & (cache->n_slots - 1)];
    while (*at && memcmp(&(*at)->key, key, sizeof *key) != 0)
        at = &(*at)->slot_next;
    return at;
}

static void ring_remove(struct entry *entry)
{
    entry->older->newer = entry->newer;
    entry->newer->older = entry->older;
}

static void ring_add_latest(struct selection_cache *cache, struct entry *entry)
{
    entry->newer = &cache->ring;
    entry->older = cache->ring.older;
    entry->older->newer = cache->ring.older = entry;
}

static void entry_remove(struct selection_cache *cache, struct entry **slot)
{
    struct entry *entry = *slot;
    *slot = entry->slot_next;
    ring_remove(entry);
    cache->bytes -= entry_bytes(entry->n_kept, entry->n_draft);
    free(entry);
}

bool selection_cache_find(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                          struct selection *selection_p)
{
    struct entry *entry = *slot_of(cache, key);
    if (!entry || entry->scorer != scorer) return false;
    ring_remove(entry);
    ring_add_latest(cache, entry);
    *selection_p = (struct selection){entry->kept,   entry->n_kept,      entry->keep_rate,
                                      entry->reason, entry_draft(entry), entry->n_draft};
    return true;
}

void selection_cache_add(struct selection_cache *cache, const struct selection_key *key, uint64_t scorer,
                         const struct selection *selection)
{
    int64_t bytes = entry_bytes(selection->n_kept, selection->n_draft);
    struct entry **slot = slot_of(cache, key);
    if (*slot) entry_remove(cache, slot);
    if (bytes > cache->bytes_max) return;
    while (cache->bytes + bytes > cache->bytes_max)
        entry_remove(cache, slot_of(cache, &cache->ring.newer->key));
    struct entry *entry = mem_alloc((size_t)bytes);
    entry->key = *key;
    entry->scorer = scorer;
    entry->keep_rate = selection->keep_rate;
    entry->reason = selection->reason;
    entry->n_kept = selection->n_kept;
    entry->n_draft = selection->n_draft;
    memcpy(entry->kept, selection->kept, (size_t)selection->n_kept * sizeof *selection->kept);
    if (selection->n_draft)
        memcpy(entry_draft(entry), selection->draft, (size_t)selection->n_draft * sizeof *selection->draft);
    slot = slot_of(cache, key); // evictions may have changed the list
    *slot = entry;
    ring_add_latest(cache, entry);
    cache->bytes += bytes;
}

void selection_cache_free(struct selection_cache *cache)
{
    if (!cache) return;
    while (cache->ring.newer != &cache->ring)
        entry_remove(cache, slot_of(cache, &cache->ring.newer->key));
    free(cache->slots);
    free(cache);
}
