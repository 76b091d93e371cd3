// SPDX-License-Identifier: Apache-2.0
#include "lib/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { HEAD_BYTES = 8, SHORT_BYTES = 11 }; // the length takes the last byte of the tail
#define LONG_TAIL UINT32_MAX

static uint64_t load_u64(const char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint32_t load_u32(const char *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

// Returns the entry of a short token without its id. Two loads that may overlap are faster than a copy of any length.
static struct vocabulary_entry short_entry(const char *token, size_t length)
{
    uint32_t tail = (uint32_t)length << 24;
    uint64_t head = 0;
    if (length > HEAD_BYTES) {
        head = load_u64(token);
        tail |= load_u32(token + length - 4) >> (8 * (12 - length));
    } else if (length >= 4) {
        head = load_u32(token) | (uint64_t)load_u32(token + length - 4) << (8 * (length - 4));
    } else if (length) {
        head = (unsigned char)token[0] | (uint64_t)(unsigned char)token[length / 2] << (8 * (length / 2)) |
               (uint64_t)(unsigned char)token[length - 1] << (8 * (length - 1));
    }
    return (struct vocabulary_entry){.head = head, .tail = tail, .id = -1};
}

// Returns the entry that a token would have, without its id.
static struct vocabulary_entry entry_of(const struct vocabulary *vocabulary, const char *token, size_t length)
{
    if (length <= SHORT_BYTES) return short_entry(token, length);
    uint64_t hash = length;
    for (; length > 8; token += 8, length -= 8)
        hash = table_hash(&vocabulary->key, hash ^ load_u64(token));
    hash = table_hash(&vocabulary->key, hash * 31 ^ load_u64(token + length - 8)); // overlaps the bytes before
    return (struct vocabulary_entry){.head = hash, .tail = LONG_TAIL, .id = -1};
}

static uint32_t first_slot(const struct vocabulary *vocabulary, const struct vocabulary_entry *entry)
{
    uint64_t hash = table_hash(&vocabulary->key, entry->head);
    return (uint32_t)table_hash(&vocabulary->key, hash ^ entry->tail) & vocabulary->mask;
}

void vocabulary_init(struct vocabulary *vocabulary, int n_ids)
{
    uint32_t mask = table_mask((size_t)n_ids);
    *vocabulary = (struct vocabulary){.token = mem_alloc_array((size_t)n_ids, sizeof(char *)),
                                      .length = mem_alloc_array((size_t)n_ids, sizeof(uint32_t)),
                                      .n_ids = n_ids,
                                      .entries = mem_alloc_array((size_t)mask + 1, sizeof *vocabulary->entries),
                                      .mask = mask,
                                      .key = hash_key_random()};
    for (size_t i = 0; i <= mask; i++)
        vocabulary->entries[i].id = -1;
}

void vocabulary_fini(struct vocabulary *vocabulary)
{
    free(vocabulary->token);
    free(vocabulary->length);
    free(vocabulary->entries);
    *vocabulary = (struct vocabulary){0};
}

void vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *token, size_t length)
{
    struct vocabulary_entry entry = entry_of(vocabulary, token, length);
    uint32_t slot = first_slot(vocabulary, &entry);
    while (vocabulary->entries[slot].id >= 0)
        slot = (slot + 1) & vocabulary->mask;
    entry.id = id;
    vocabulary->entries[slot] = entry;
    vocabulary->token[id] = token;
    vocabulary->length[id] = (uint32_t)length;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length)
{
    struct vocabulary_entry wanted = entry_of(vocabulary, token, length);
    uint32_t slot = first_slot(vocabulary, &wanted);
    for (;; slot = (slot + 1) & vocabulary->mask) {
        const struct vocabulary_entry *entry = &vocabulary->entries[slot];
        if (entry->id < 0) return -1;
        if (entry->head != wanted.head || entry->tail != wanted.tail) continue;
        if (length <= SHORT_BYTES) return entry->id;
        if (vocabulary->length[entry->id] == length && !memcmp(vocabulary->token[entry->id], token, length))
            return entry->id;
    }
}
