// SPDX-License-Identifier: Apache-2.0
// engine/block_manager: a lookup returns the block with the same tokens, positions and predecessor, or none, however
// many keys share a bucket. With four blocks there are four buckets for all keys.
#include <stdlib.h>

#include "engine/block_manager.h"
#include "tests/suite.h"

enum { BLOCKS = 4, NUMBERS = 8, KEYS = NUMBERS * NUMBERS * 3, STEPS = 500 };

// Returns key number `number`. Two keys differ in a token, a position or the block before.
static struct kv_key key_of(int number)
{
    struct kv_key key = {.before = (kv_chain)(number / (NUMBERS * NUMBERS)) * 1000};
    for (int i = 0; i < KV_BLOCK_TOKENS; i++) {
        key.token[i] = 5;
        key.position[i] = i;
    }
    key.token[number % NUMBERS] = 6;
    key.position[KV_BLOCK_TOKENS - 1] += number / NUMBERS % NUMBERS;
    return key;
}

START_TEST(blocks_of_one_bucket_are_told_apart)
{
    struct block_manager *manager = block_manager_create(BLOCKS);
    kv_chain chains[KEYS] = {0}, chain = 0;
    uint32_t random = 1;
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525 + 1013904223;
        int published = (int)((random >> 16) % KEYS), n_found = 0;
        struct kv_key key = key_of(published);
        int32_t block = block_manager_lookup(manager, &key, &chain);
        if (block < 0) {
            ck_assert(block_manager_allocate(manager, 1, &block));
            ck_assert_int_eq(block_manager_publish(manager, &key, block, &chains[published]), block);
            block_manager_release(manager, &block, 1);
        }
        for (int k = 0; k < KEYS; k++) {
            key = key_of(k);
            block = block_manager_lookup(manager, &key, &chain);
            ck_assert(block < 0 || chain == chains[k]);
            ck_assert(k != published || block >= 0);
            n_found += block >= 0;
        }
        ck_assert_int_le(n_found, BLOCKS);
    }
    block_manager_free(manager);
}
END_TEST

SUITE("block_keys")
{
    TEST(blocks_of_one_bucket_are_told_apart);
}
