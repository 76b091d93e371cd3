// SPDX-License-Identifier: Apache-2.0
#include "sim/pass_group.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "sim/oracle_group.h"

// --- the group before the pass

static void add_sequence(struct pass_model *m, const struct sequence *q)
{
    MEM_GROW(m->sequences, m->n_sequences, m->sequences_capacity);
    m->sequences[m->n_sequences++] = (struct pass_sequence){.q = q,
                                                            .cached = q->n_cached,
                                                            .blocks = q->n_blocks,
                                                            .is_chunked = q->is_chunked,
                                                            .id = q->id,
                                                            .draft = q->n_draft};
}

static void read_blocks(struct pass_model *m)
{
    free(m->refs);
    m->refs = mem_alloc_array((size_t)m->s->limits.kv_blocks, sizeof *m->refs);
    m->free_blocks = m->blank_blocks = 0;
    for (int b = 0; b < m->s->limits.kv_blocks; b++) {
        m->refs[b] = block_manager_refs(m->s->blocks, b);
        m->free_blocks += !m->refs[b];
        m->blank_blocks += !m->refs[b] && !block_manager_chain(m->s->blocks, b);
    }
}

void pass_group_read(struct pass_model *m)
{
    const struct scheduler *s = m->s;
    m->n_sequences = m->n_running = m->n_queue = 0;
    for (int i = 0; i < s->n_running; i++)
        add_sequence(m, s->running[i]);
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        add_sequence(m, q);
    while (m->running_capacity < m->n_sequences || !m->running)
        MEM_GROW(m->running, m->running_capacity, m->running_capacity);
    while (m->queue_capacity < m->n_sequences || !m->queue)
        MEM_GROW(m->queue, m->queue_capacity, m->queue_capacity);
    for (int i = 0; i < s->n_running; i++)
        m->sequences[i].has_run = true;
    for (int i = 0; i < m->n_sequences; i++)
        *(i < s->n_running ? &m->running[m->n_running++] : &m->queue[m->n_queue++]) = &m->sequences[i];
    read_blocks(m);
}

// --- KV blocks and the prefix cache

// Returns the number of cached blocks of a waiting sequence, and in *n_free_p how many of these blocks have no
// reference.
static int cached_blocks(struct pass_model *m, const struct pass_sequence *x, int *n_free_p)
{
    int32_t *blocks = mem_alloc_array((size_t)x->q->n_tokens / KV_BLOCK_TOKENS + 1, sizeof *blocks);
    int n = m->s->limits.prefix_cache ? group_cached_blocks(m->s, x->q, blocks) : 0;
    *n_free_p = 0;
    for (int i = 0; i < n; i++)
        *n_free_p += !m->refs[blocks[i]];
    free(blocks);
    m->is_unknown |= *n_free_p && m->blank_blocks < 0; // some of these may have been evicted
    return n;
}

static int blocks_most(const struct pass_sequence *x)
{
    return kv_blocks_for(x->q->n_kept + x->q->sampling.max_tokens - 1);
}

// Returns the additional blocks that running sequences are expected to need, at least one for each that grows.
static int blocks_reserved(const struct pass_model *m)
{
    int sum = 0;
    for (int i = 0; i < m->n_running; i++) {
        const struct pass_sequence *x = m->running[i];
        int more = group_blocks_expected(x->q) - x->blocks;
        sum += more > 0 ? more : x->blocks < blocks_most(x);
    }
    return sum;
}

static void take_blocks(struct pass_model *m, int n)
{
    m->free_blocks -= n;
    m->blank_blocks -= n;
}

// Returns true if a running sequence computes at least two blocks that the waiting one can use and the cache does not
// have yet.
bool pass_group_waits(struct pass_model *m, const struct pass_sequence *x)
{
    if (!m->s->limits.prefix_cache || pass_rates_prompt(x)) return false;
    int n_free, cached = cached_blocks(m, x, &n_free);
    for (int i = 0; i < m->n_running; i++) {
        int common = group_blocks_common(x->q, m->running[i]->q);
        if (common >= cached + 2 && common > m->running[i]->cached / KV_BLOCK_TOKENS) return true;
    }
    return false;
}

bool pass_group_may_start(struct pass_model *m, const struct pass_sequence *x)
{
    int n_free, cached = cached_blocks(m, x, &n_free);
    return m->n_running < m->s->limits.max_seqs &&
           group_blocks_expected(x->q) - cached + blocks_reserved(m) <= m->free_blocks;
}

bool pass_group_start(struct pass_model *m, struct pass_sequence *x)
{
    int n_free, cached = cached_blocks(m, x, &n_free), at = 0;
    if (m->n_running == m->s->limits.max_seqs) return false;
    if (group_blocks_expected(x->q) - cached + blocks_reserved(m) > m->free_blocks - n_free) return false;
    int32_t *blocks = mem_alloc_array((size_t)cached + 1, sizeof *blocks);
    if (cached) group_cached_blocks(m->s, x->q, blocks);
    for (int i = 0; i < cached; i++)
        m->refs[blocks[i]]++;
    free(blocks);
    m->free_blocks -= n_free;
    take_blocks(m, kv_blocks_for(x->q->n_tokens) - cached);
    x->cached = cached * KV_BLOCK_TOKENS;
    m->counts.reused_rows += (uint64_t)x->cached;
    x->blocks = kv_blocks_for(x->q->n_tokens);
    while (m->queue[at] != x)
        at++;
    memmove(m->queue + at, m->queue + at + 1, (size_t)(--m->n_queue - at) * sizeof *m->queue);
    m->running[m->n_running++] = x;
    if (m->counts.most_running < (uint64_t)m->n_running) m->counts.most_running = (uint64_t)m->n_running;
    return true;
}

int pass_group_cached_entries(struct pass_model *m, const struct pass_sequence *x)
{
    int n_free;
    return KV_BLOCK_TOKENS * cached_blocks(m, x, &n_free);
}

int pass_group_draft_blocks(struct pass_model *m, struct pass_sequence *x, int rows)
{
    int more = kv_blocks_for(x->q->n_tokens + rows) - x->blocks;
    bool others_wait = m->n_queue && m->n_running < m->s->limits.max_seqs;
    if (more > 0 && !others_wait && more + blocks_reserved(m) <= m->free_blocks) {
        take_blocks(m, more);
        x->blocks += more;
    }
    int room = x->blocks * KV_BLOCK_TOKENS - x->q->n_tokens;
    return rows < room ? rows : room;
}

// --- growth and preemption

// Returns the entries that would have to be computed again: the entries in blocks that no other sequence has.
static int entries_lost(const struct pass_model *m, const struct pass_sequence *x)
{
    int shared = 0;
    while (shared < x->q->n_published && m->refs[x->q->blocks[shared]] > 1)
        shared++;
    return x->cached - shared * KV_BLOCK_TOKENS;
}

// Returns the index of the running sequence that loses the fewest entries; among equals, the last.
static int victim_of(const struct pass_model *m)
{
    int victim = -1;
    for (int i = 0; i < m->n_running; i++) {
        int lost = entries_lost(m, m->running[i]);
        if (lost && (victim < 0 || lost <= entries_lost(m, m->running[victim]))) victim = i;
    }
    return victim < 0 ? 0 : victim;
}

static void preempt(struct pass_model *m, int victim)
{
    struct pass_sequence *x = m->running[victim];
    for (int b = 0; b < x->blocks; b++) {
        bool is_new = b >= x->q->n_blocks; // added in this pass
        if (!is_new && --m->refs[x->q->blocks[b]]) continue;
        m->free_blocks++;
        m->blank_blocks += is_new || !block_manager_chain(m->s->blocks, x->q->blocks[b]);
    }
    x->cached = x->blocks = 0;
    x->is_chunked = false;
    x->is_preempted = true;
    memmove(m->running + victim, m->running + victim + 1, (size_t)(--m->n_running - victim) * sizeof *m->running);
    memmove(m->queue + 1, m->queue, (size_t)m->n_queue++ * sizeof *m->queue);
    m->queue[0] = x;
    m->counts.preemptions++;
}

void pass_group_grow(struct pass_model *m)
{
    for (int i = 0; i < m->n_running;) {
        struct pass_sequence *x = m->running[i];
        int more = kv_blocks_for(x->cached + 1) - x->blocks;
        if (more > m->free_blocks) {
            int victim = victim_of(m);
            preempt(m, victim);
            i -= victim < i;
            continue;
        }
        if (more > 0) {
            take_blocks(m, more);
            x->blocks += more;
        }
        i++;
    }
}
