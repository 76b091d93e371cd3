// SPDX-License-Identifier: Apache-2.0
// engine/: blocks are handed out once, found again by what they hold, and evicted from the end of the oldest chain.
#include <string.h>

#include "engine/prefix_cache.h"
#include "tests/suite.h"

START_TEST(allocated_blocks_are_distinct_and_return)
{
    enum { BLOCKS = 50, HOLDERS = 8 };
    struct block_manager *manager = block_manager_create(BLOCKS);
    int32_t held[HOLDERS][BLOCKS];
    int n[HOLDERS] = {0}, owner[BLOCKS];
    memset(owner, -1, sizeof owner);
    uint32_t random = 12345;
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        int h = (int)(random >> 8) % HOLDERS, count = (int)(random >> 16) % 12;
        int before = block_manager_n_free(manager);
        if (n[h]) {
            for (int i = 0; i < n[h]; i++)
                owner[held[h][i]] = -1;
            block_manager_release(manager, held[h], n[h]);
            ck_assert_int_eq(block_manager_n_free(manager), before + n[h]);
            n[h] = 0;
        } else if (block_manager_allocate(manager, count, held[h])) {
            n[h] = count;
            ck_assert_int_eq(block_manager_n_free(manager), before - count);
            for (int i = 0; i < count; i++) {
                ck_assert_int_ge(held[h][i], 0);
                ck_assert_int_lt(held[h][i], BLOCKS);
                ck_assert_int_lt(owner[held[h][i]], 0);
                owner[held[h][i]] = h;
            }
        } else {
            ck_assert_int_lt(before, count);
            ck_assert_int_eq(block_manager_n_free(manager), before);
        }
    }
    for (int h = 0; h < HOLDERS; h++)
        block_manager_release(manager, held[h], n[h]);
    ck_assert_int_eq(block_manager_n_free(manager), block_manager_size(manager));
    block_manager_free(manager);
    ck_assert_int_eq(kv_blocks_for(0), 0);
    ck_assert_int_eq(kv_blocks_for(1), 1);
    ck_assert_int_eq(kv_blocks_for(16), 1);
    ck_assert_int_eq(kv_blocks_for(17), 2);
}
END_TEST

// The sequences have few different tokens, so that many share prefixes. Some have gaps in their positions. The test
// remembers the content of each block. A found block must have the content that was asked for, however many blocks were
// evicted meanwhile.
START_TEST(a_found_block_holds_what_was_asked_for)
{
    enum { BLOCKS = 40, HOLDERS = 6, LONGEST = 8 };
    struct holder {
        struct kv_key keys[LONGEST];
        int32_t blocks[LONGEST];
        uint64_t content[LONGEST]; // hashes of the chain up to each block
        int n, published;
        kv_chain chain;
    };
    static struct holder holders[HOLDERS];
    memset(holders, 0, sizeof holders);
    uint64_t memory[BLOCKS] = {0};
    int users[BLOCKS] = {0}, reused = 0, computed = 0, adopted = 0;
    struct block_manager *manager = block_manager_create(BLOCKS);
    uint32_t random = (uint32_t)_i + 1;
    for (int step = 0; step < 30000; step++) {
        random = random * 1664525 + 1013904223;
        struct holder *h = &holders[(random >> 8) % HOLDERS];
        if (h->n && random >> 30) { // continues: publishes its next block
            if (h->published == h->n) continue;
            int32_t *block = &h->blocks[h->published], before = *block;
            h->keys[h->published].before = h->chain;
            *block = block_manager_publish(manager, &h->keys[h->published], before, &h->chain);
            ck_assert_uint_eq(memory[*block], h->content[h->published]);
            adopted += *block != before;
            users[before]--;
            users[*block]++;
            h->published++;
        } else if (h->n) { // ends
            for (int i = 0; i < h->n; i++)
                users[h->blocks[i]]--;
            block_manager_release(manager, h->blocks, h->n);
            h->n = 0;
        } else { // begins
            int n = 1 + (int)(random >> 16) % LONGEST, position = 0;
            uint64_t content = 7;
            for (int i = 0; i < n; i++) {
                random = random * 1664525 + 1013904223;
                int token = (int)(random >> 20) % 2, gap = (random >> 24) % 8 == 0;
                for (int t = 0; t < KV_BLOCK_TOKENS; t++) {
                    h->keys[i].token[t] = token;
                    h->keys[i].position[t] = position++;
                }
                h->keys[i].position[KV_BLOCK_TOKENS - 1] = position += gap;
                content = (content * 31 + (uint64_t)token * 2 + (uint64_t)gap + 1) * 0x9e3779b97f4a7c15u;
                h->content[i] = content;
            }
            kv_chain chain = 0;
            int found = 0;
            for (; found < n; found++) {
                h->keys[found].before = chain;
                int32_t block = block_manager_lookup(manager, &h->keys[found], &chain);
                if (block < 0) break;
                ck_assert_uint_eq(memory[block], h->content[found]);
                block_manager_retain(manager, block);
                h->blocks[found] = block;
                users[block]++;
            }
            int before = block_manager_n_free(manager);
            if (!block_manager_allocate(manager, n - found, h->blocks + found)) {
                ck_assert_int_lt(before, n - found);
                for (int i = 0; i < found; i++)
                    users[h->blocks[i]]--;
                block_manager_release(manager, h->blocks, found);
                continue;
            }
            for (int i = found; i < n; i++) {
                ck_assert_int_eq(users[h->blocks[i]]++, 0);
                memory[h->blocks[i]] = h->content[i]; // computed immediately
            }
            h->n = n;
            h->published = found;
            h->chain = chain;
            reused += found;
            computed += n - found;
        }
        int held = 0;
        for (int b = 0; b < BLOCKS; b++)
            held += users[b] > 0;
        ck_assert_int_eq(block_manager_n_free(manager), BLOCKS - held);
    }
    for (int i = 0; i < HOLDERS; i++)
        block_manager_release(manager, holders[i].blocks, holders[i].n);
    ck_assert_int_gt(reused, 1000);
    ck_assert_int_gt(computed, 1000);
    ck_assert_int_gt(adopted, 10);
    block_manager_free(manager);
}
END_TEST

START_TEST(the_end_of_the_chain_released_first_is_evicted_first)
{
    struct block_manager *manager = block_manager_create(6);
    int32_t old[3], young[3], more[4];
    struct kv_key keys[6] = {0};
    kv_chain chain = 0;
    block_manager_allocate(manager, 3, old);
    block_manager_allocate(manager, 3, young);
    for (int i = 0; i < 6; i++) {
        if (i == 3) chain = 0;
        keys[i].token[0] = i;
        keys[i].before = chain;
        block_manager_publish(manager, &keys[i], i < 3 ? old[i] : young[i - 3], &chain);
    }
    block_manager_release(manager, old, 3);
    block_manager_release(manager, young, 3);
    ck_assert_int_eq(block_manager_n_free(manager), 6);
    for (int n = 1; n <= 4; n++) { // block by block: the older chain from its end, then the younger one
        ck_assert(block_manager_allocate(manager, 1, more + n - 1));
        static const bool left[][6] = {{1, 1, 0, 1, 1, 1}, {1, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 0}};
        for (int i = 0; i < 6; i++)
            ck_assert_int_eq(block_manager_lookup(manager, &keys[i], &chain) >= 0, left[n - 1][i]);
    }
    block_manager_release(manager, more, 4);
    block_manager_free(manager);
}
END_TEST

START_TEST(a_lookup_continues_where_the_last_one_ended)
{
    enum { BLOCKS = 4, ROWS = BLOCKS * KV_BLOCK_TOKENS + 1 };
    struct block_manager *manager = block_manager_create(BLOCKS);
    static int32_t token[ROWS];
    struct prefix_rows rows = {.token = token, .n = ROWS};
    struct prefix_match match = {0};
    int32_t blocks[BLOCKS];
    int published = 0;
    kv_chain chain = 0;
    ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), 0);
    block_manager_allocate(manager, BLOCKS, blocks);
    for (int n = 0; n <= BLOCKS; n++) {
        prefix_cache_publish(manager, &rows, n * KV_BLOCK_TOKENS, blocks, &published, &chain);
        ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), n);
    }
    block_manager_release(manager, blocks, BLOCKS);
    for (int n = BLOCKS - 1; n >= 0; n--) { // evicted from the end
        int32_t other;
        ck_assert(block_manager_allocate(manager, 1, &other));
        if (n % 2 == 0) ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), n);
        blocks[n] = other;
    }
    // The same blocks published with other tokens are not found.
    static int32_t different[ROWS] = {7};
    struct prefix_rows other = {.token = different, .n = ROWS};
    published = 0;
    chain = 0;
    prefix_cache_publish(manager, &other, ROWS - 1, blocks, &published, &chain);
    ck_assert_int_eq(prefix_cache_lookup(manager, &rows, &match), 0);
    block_manager_release(manager, blocks, BLOCKS);
    block_manager_free(manager);
}
END_TEST

SUITE("block_manager")
{
    TIMEOUT(30);
    TEST(allocated_blocks_are_distinct_and_return);
    LOOP(a_found_block_holds_what_was_asked_for, 0, 3);
    TEST(the_end_of_the_chain_released_first_is_evicted_first);
    TEST(a_lookup_continues_where_the_last_one_ended);
}
