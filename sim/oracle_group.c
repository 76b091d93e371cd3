// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_group.h"

#include <string.h>

// --- the prefix cache

static bool block_is_same(const struct sequence *a, const struct sequence *b, int block)
{
    size_t first = (size_t)block * KV_BLOCK_TOKENS, bytes = KV_BLOCK_TOKENS * sizeof(int32_t);
    return memcmp(a->tokens + first, b->tokens + first, bytes) == 0 &&
           memcmp(a->positions + first, b->positions + first, bytes) == 0;
}

int group_blocks_common(const struct sequence *q, const struct sequence *other)
{
    int most = (q->n_tokens - 1) / KV_BLOCK_TOKENS, n = 0;
    if (other->n_tokens / KV_BLOCK_TOKENS < most) most = other->n_tokens / KV_BLOCK_TOKENS;
    while (q->salt == other->salt && n < most && block_is_same(q, other, n))
        n++;
    return n;
}

int group_cached_blocks(const struct scheduler *s, const struct sequence *q, int32_t *blocks)
{
    struct kv_key key = {.salt = q->salt};
    int n = 0, most = (q->n_tokens - 1) / KV_BLOCK_TOKENS;
    if (sequence_wants_prompt_logprobs(q)) return 0;
    for (kv_chain chain = 0; n < most; n++) {
        key.before = chain;
        memcpy(key.token, q->tokens + (ptrdiff_t)n * KV_BLOCK_TOKENS, sizeof key.token);
        memcpy(key.position, q->positions + (ptrdiff_t)n * KV_BLOCK_TOKENS, sizeof key.position);
        int32_t block = block_manager_lookup(s->blocks, &key, &chain);
        if (block < 0) break;
        if (blocks) blocks[n] = block;
    }
    return n;
}

// Returns true if a sequence would wait for the prefix of another tenant's sequence.
static bool waits_for_other_tenant(const struct sequence *q)
{
    struct prefix_rows mine = sequence_rows(q), others = mine;
    others.salt++;
    return prefix_cache_worth_waiting(&mine, 0, &others, 0);
}

// --- KV blocks

int group_blocks_expected(const struct sequence *q)
{
    int left = q->sampling.max_tokens - (q->n_tokens - q->n_kept), most = q->n_kept + q->sampling.max_tokens - 1;
    int expected = kv_blocks_for(q->n_tokens) + (int)output_blocks_expected(kv_blocks_for(left));
    return expected < kv_blocks_for(most) ? expected : kv_blocks_for(most);
}

// Returns the free blocks that running sequences are expected to need, at least one for each that grows.
static int blocks_reserved(const struct scheduler *s)
{
    int sum = 0;
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *q = s->running[i];
        int more = group_blocks_expected(q) - q->n_blocks, most = kv_blocks_for(q->n_kept + q->sampling.max_tokens - 1);
        sum += more > 0 ? more : q->n_blocks < most;
    }
    return sum;
}

// Checks that a one-token request may start if it needs exactly the blocks that are left. It may not start if it
// needs one more block.
static bool room_is_right(const struct scheduler *s)
{
    int left = block_manager_n_free(s->blocks) - blocks_reserved(s);
    for (int blocks = left > 0 ? left : 1; blocks <= left + 1; blocks++) {
        struct sequence q = {
            .n_kept = blocks * KV_BLOCK_TOKENS, .n_tokens = blocks * KV_BLOCK_TOKENS, .rope = &s->config->rope};
        q.sampling.max_tokens = 1;
        if (admission_may_start(s, &q) != (blocks <= left && s->n_running < s->limits.max_seqs)) return false;
    }
    return true;
}

const char *oracle_group(const struct scheduler *s)
{
    if (!room_is_right(s)) return "admission differs from the KV blocks that are left";
    for (struct sequence *q = s->queue.head; q; q = q->next) {
        bool has_cache = s->limits.prefix_cache;
        if (has_cache && admission_cached_entries(s, q) != KV_BLOCK_TOKENS * group_cached_blocks(s, q, NULL))
            return "the cached blocks of a waiting sequence differ from the prefix cache";
        if (waits_for_other_tenant(q)) return "a sequence would wait for the prefix of another tenant";
    }
    return NULL;
}
