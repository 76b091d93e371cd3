// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_group.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// --- the prefix cache

static bool block_is_same(const struct sequence *a, const struct sequence *b, int block)
{
    size_t first = (size_t)block * KV_BLOCK_TOKENS, bytes = KV_BLOCK_TOKENS * sizeof(int32_t);
    return memcmp(a->tokens + first, b->tokens + first, bytes) == 0 &&
           memcmp(a->positions + first, b->positions + first, bytes) == 0;
}

// Leading blocks that the first sequence could use of the second one's.
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

// A running sequence computes two blocks or more that the waiting one can use and the cache does not have yet.
static bool waits_for_prefix(const struct scheduler *s, const struct sequence *q)
{
    int cached = group_cached_blocks(s, q, NULL);
    if (sequence_wants_prompt_logprobs(q)) return false;
    for (int i = 0; s->limits.prefix_cache && i < s->n_running; i++) {
        int common = group_blocks_common(q, s->running[i]);
        if (common >= cached + 2 && common > s->running[i]->n_published) return true;
    }
    return false;
}

// Whether a sequence would wait for one with the same tokens that another tenant computes.
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

// Free blocks beyond those that the running sequences are expected to need, and this one.
static int blocks_to_spare(const struct scheduler *s, const struct sequence *q)
{
    int spare = block_manager_n_free(s->blocks) - group_blocks_expected(q);
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *r = s->running[i];
        int more = group_blocks_expected(r) - r->n_blocks;
        bool grows = r->n_blocks < kv_blocks_for(r->n_kept + r->sampling.max_tokens - 1);
        spare -= more > 0 ? more : grows;
    }
    return spare;
}

static int entries_lost(const struct scheduler *s, const struct sequence *q)
{
    int lost = q->n_cached;
    for (int b = 0; b < q->n_published && block_manager_refs(s->blocks, q->blocks[b]) > 1; b++)
        lost -= KV_BLOCK_TOKENS;
    return lost;
}

// --- before

static struct sequence_before describe(const struct scheduler *s, const struct sequence *q)
{
    int pending = q->n_tokens - q->n_cached;
    return (struct sequence_before){.id = q->id, .pending = pending, .is_prompt = pending > 1};
}

void group_oracle_before(struct group_oracle *o, const struct scheduler *s)
{
    o->n_running = o->n_queue = o->prompt_rows = o->decodes = 0;
    o->preemptions = s->preemptions;
    o->counted_rows = s->prompt_rows;
    o->generated = 0;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence_before before = describe(s, s->running[i]);
        before.lost = entries_lost(s, s->running[i]);
        o->generated += s->running[i]->n_cached >= s->running[i]->n_kept;
        *(before.is_prompt ? &o->prompt_rows : &o->decodes) += before.pending;
        MEM_GROW(o->running, o->n_running, o->running_capacity);
        o->running[o->n_running++] = before;
    }
    for (struct sequence *q = s->queue.head; q; q = q->next) {
        struct sequence_before before = describe(s, q);
        int spare = blocks_to_spare(s, q);
        before.waits = waits_for_prefix(s, q);
        if (s->limits.prefix_cache &&
            admission_cached_entries(s, q) != KV_BLOCK_TOKENS * group_cached_blocks(s, q, NULL))
            o->has_wrong_match = true;
        o->mixes_tenants |= waits_for_other_tenant(q);
        before.starts = !before.waits && spare >= s->n_running && s->n_running < s->limits.max_seqs;
        MEM_GROW(o->queue, o->n_queue, o->queue_capacity);
        o->queue[o->n_queue++] = before;
    }
}

// --- after

static const struct sequence *find_running(const struct scheduler *s, uint64_t id)
{
    for (int i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id) return s->running[i];
    return NULL;
}

static bool is_queued(const struct scheduler *s, uint64_t id)
{
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        if (q->id == id) return true;
    return false;
}

// Of the running sequences it was the one that lost the fewest entries, of equals the last.
static const char *victim_check(const struct group_oracle *o, int victim)
{
    for (int i = 0; i < o->n_running; i++) {
        int lost = o->running[i].lost, least = o->running[victim].lost;
        if (lost && (lost < least || (lost == least && i > victim)))
            return "a sequence was preempted though another one would have lost less";
    }
    return NULL;
}

static const char *preemptions_check(const struct group_oracle *o, const struct scheduler *s)
{
    uint64_t n = 0;
    int victim = 0;
    for (int i = 0; i < o->n_running; i++) {
        if (!is_queued(s, o->running[i].id)) continue;
        victim = i;
        n++;
    }
    if (s->preemptions < o->preemptions + n) return "a preemption was not counted";
    return n == 1 && s->preemptions == o->preemptions + 1 ? victim_check(o, victim) : NULL;
}

static int count_started(const struct group_oracle *o, const struct scheduler *s)
{
    int n = 0;
    for (int i = 0; i < o->n_queue; i++)
        n += !is_queued(s, o->queue[i].id);
    return n;
}

// The prompts that are running all advance, or the rows of the pass are used up.
static const char *rows_check(const struct group_oracle *o, const struct scheduler *s)
{
    bool is_full = s->builder.batch.n_rows >= s->limits.token_budget;
    int others = 0, advanced = count_started(o, s); // prompts that are shorter than the one started first
    const struct sequence_before *first = NULL;
    for (int i = 0; i < o->n_running; i++) {
        const struct sequence_before *before = &o->running[i];
        const struct sequence *now = find_running(s, before->id);
        bool stands = now && !now->pass_rows;
        if (stands && !before->is_prompt) return "a decoding sequence had no row in a pass";
        if (stands && before->is_prompt && !is_full) return "a prompt had no row in a pass that had room";
        if (!before->is_prompt) continue;
        for (int k = 0; k < i && !stands && first && first->pending > s->limits.token_budget; k++) {
            const struct sequence *earlier = find_running(s, o->running[k].id);
            bool is_same = o->running[k].is_prompt && o->running[k].pending == before->pending;
            if (is_same && earlier && !earlier->pass_rows) return "of two equal prompts the later one advanced";
        }
        if (first && before->pending < first->pending) {
            others++;
            advanced += !stands;
        }
        if (!first) first = before;
    }
    for (int i = 0; first && i < o->n_queue; i++)
        others += o->queue[i].starts && o->queue[i].pending < first->pending;
    int rows = s->limits.token_budget - o->decodes;
    return others && !advanced && rows >= 4 && first->pending > rows ? "short prompts wait behind a long one" : NULL;
}

static const char *waits_check(const struct group_oracle *o, const struct scheduler *s)
{
    for (int i = 0; i < o->n_queue; i++)
        if (o->queue[i].waits && !is_queued(s, o->queue[i].id))
            return "a sequence was started that was to wait for a prefix";
    return NULL;
}

static const char *starts_check(const struct group_oracle *o, const struct scheduler *s)
{
    const struct sequence_before *first = NULL;
    for (int i = 0; i < o->n_queue && !first; i++)
        if (!o->queue[i].waits) first = &o->queue[i];
    bool room = o->decodes + o->prompt_rows < s->limits.token_budget;
    return room && !count_started(o, s) && first && first->starts ? "a sequence waits though the group has room for it"
                                                                  : NULL;
}

const char *group_oracle_after(const struct group_oracle *o, const struct scheduler *s)
{
    bool preempted = s->preemptions != o->preemptions;
    if (o->has_wrong_match) return "a waiting sequence remembers cached blocks that are not cached, or not all";
    if (o->mixes_tenants) return "a sequence would wait for the prefix of another tenant";
    const char *problem = preemptions_check(o, s);
    if (!problem && !preempted) problem = waits_check(o, s);
    // Pacing and sampling on the host keep rows out of a pass.
    if (problem || preempted || !isinf(s->pace.budget) || s->host_rows_left < INT_MAX / 2) return problem;
    if (s->prompt_rows - o->counted_rows > (uint64_t)(s->builder.batch.n_rows - o->generated))
        return "rows of generated tokens were counted as those of prompts";
    problem = rows_check(o, s);
    return problem ? problem : starts_check(o, s);
}

void group_oracle_fini(struct group_oracle *o)
{
    free(o->running);
    free(o->queue);
    *o = (struct group_oracle){.n_running = 0};
}
