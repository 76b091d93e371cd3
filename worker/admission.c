// SPDX-License-Identifier: Apache-2.0
// Decides which sequences run: KV blocks, the prefix cache and preemption.
#include <limits.h>
#include <string.h>

#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "worker/scheduler_state.h"

// ---- blocks ----

static void sequence_release_blocks(struct scheduler *s, struct sequence *q)
{
    block_manager_release(s->blocks, q->blocks, q->n_blocks);
    q->n_blocks = q->n_published = 0;
    q->n_cached = 0;
    q->chain = 0;
    q->is_chunked = false;
}

static bool sequence_allocate_blocks(struct scheduler *s, struct sequence *q, int entries)
{
    int more = kv_blocks_for(entries) - q->n_blocks;
    if (more <= 0) return true;
    if (!block_manager_allocate(s->blocks, more, q->blocks + q->n_blocks)) return false;
    q->n_blocks += more;
    return true;
}

int admission_find_running(const struct scheduler *s, uint64_t id)
{
    for (int i = 0; i < s->n_running; i++)
        if (s->running[i]->id == id) return i;
    return -1;
}

void admission_remove_running(struct scheduler *s, int index)
{
    s->n_running--;
    memmove(s->running + index, s->running + index + 1, (size_t)(s->n_running - index) * sizeof *s->running);
}

void admission_free_sequence(struct scheduler *s, struct sequence *q)
{
    sequence_release_blocks(s, q);
    s->n_of_link[link_id_link(q->id) % NODE_LINKS_MAX]--;
    sequence_free(q);
}

// ---- preemption ----

// Returns how many entries would have to be computed again after a preemption: the entries in blocks that no other
// sequence references.
static int sequence_entries_lost(const struct scheduler *s, const struct sequence *q)
{
    int shared = 0;
    while (shared < q->n_published && block_manager_refs(s->blocks, q->blocks[shared]) > 1)
        shared++;
    return q->n_cached - shared * KV_BLOCK_TOKENS;
}

// Returns the index of the running sequence that would lose the fewest entries, or the index of such a paused sequence,
// or -1. Among equal losses, returns the sequence started last. Skips sequences that would lose no entry, because they
// would free no block.
static int choose_victim(const struct scheduler *s, bool is_paused)
{
    int victim = -1, fewest = INT_MAX;
    for (int i = 0; i < s->n_running; i++) {
        int lost = sequence_entries_lost(s, s->running[i]);
        if (lost == 0 || lost > fewest || (is_paused && !s->running[i]->is_paused)) continue;
        fewest = lost;
        victim = i;
    }
    return victim;
}

static void sequence_preempt(struct scheduler *s, int index)
{
    struct sequence *q = s->running[index];
    log_event(LOG_DEBUG, "sequence_preempted", LOG_REQUEST(q->id), LOG_FIELD("cached", q->n_cached),
              LOG_FIELD("blocks", q->n_blocks));
    admission_remove_running(s, index);
    sequence_release_blocks(s, q);
    sequence_queue_push_front(&s->queue, q);
    s->preemptions++;
}

// Preempts a paused sequence. Returns false if there is none. It has no rows in the current pass.
static bool preempt_paused(struct scheduler *s)
{
    int victim = choose_victim(s, true);
    for (int i = s->n_running - 1; i >= 0 && victim < 0; i--) // it frees no block, but its place
        if (s->running[i]->is_paused) victim = i;
    if (victim >= 0) sequence_preempt(s, victim);
    return victim >= 0;
}

void admission_pause(struct scheduler *s)
{
    bool others = false;
    for (int i = 0; i < s->n_running; i++)
        others |= !s->running[i]->is_background;
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        others |= !q->is_background;
    for (int i = 0; i < s->n_running; i++)
        s->running[i]->is_paused = others && s->running[i]->is_background;
    for (struct sequence *q = s->queue.head; q; q = q->next)
        q->is_paused = others && q->is_background;
    s->is_background = !others;
}

void admission_grow(struct scheduler *s)
{
    for (int i = 0; i < s->n_running;) {
        struct sequence *q = s->running[i];
        if (!q->is_paused && sequence_short_tokens_left(q) < 0) {
            q->rope_length = q->positions[q->n_tokens - 1] + 1;
            sequence_preempt(s, i);
            continue;
        }
        if (q->is_paused || sequence_allocate_blocks(s, q, q->n_cached + 1)) {
            i++;
            continue;
        }
        INVARIANT(s->n_running > 1, "a lone sequence of %d tokens has no block, although sequence_create() accepted it",
                  q->n_tokens);
        int victim = choose_victim(s, true);
        if (victim < 0) victim = choose_victim(s, false);
        if (victim < 0) victim = 0;
        sequence_preempt(s, victim);
        if (victim < i) i--;
    }
}

// ---- the prefix cache ----

static int sequence_cached_blocks(const struct scheduler *s, struct sequence *q)
{
    if (sequence_wants_prompt_logprobs(q)) return 0;
    struct prefix_rows rows = sequence_rows(q);
    return prefix_cache_lookup(s->blocks, &rows, &q->match);
}

int admission_cached_entries(const struct scheduler *s, struct sequence *q)
{
    return s->limits.prefix_cache ? KV_BLOCK_TOKENS * sequence_cached_blocks(s, q) : 0;
}

bool admission_waits_for_prefix(const struct scheduler *s, struct sequence *q)
{
    if (!s->limits.prefix_cache || sequence_wants_prompt_logprobs(q)) return false;
    struct prefix_rows rows = sequence_rows(q);
    int n_cached = sequence_cached_blocks(s, q);
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i]->is_paused) continue; // it would wait for this sequence, too
        struct prefix_rows other = sequence_rows(s->running[i]);
        if (prefix_cache_worth_waiting(&rows, n_cached, &other, s->running[i]->n_published)) return true;
    }
    return false;
}

static void sequence_acquire_prefix(struct scheduler *s, struct sequence *q)
{
    struct prefix_rows rows = sequence_rows(q);
    if (s->limits.prefix_cache && !sequence_wants_prompt_logprobs(q))
        q->n_blocks = q->n_published = prefix_cache_acquire(s->blocks, &rows, q->blocks, &q->chain);
    q->n_cached = q->n_blocks * KV_BLOCK_TOKENS;
}

void admission_publish(struct scheduler *s, struct sequence *q)
{
    struct prefix_rows rows = sequence_rows(q);
    if (s->limits.prefix_cache)
        prefix_cache_publish(s->blocks, &rows, q->n_cached, q->blocks, &q->n_published, &q->chain);
}

// ---- admission ----

// Returns how many blocks the sequence is expected to need at its end.
static int sequence_blocks_expected(const struct sequence *q)
{
    int left = kv_blocks_for(q->sampling.max_tokens - sequence_generated(q)), max = sequence_blocks_max(q);
    int expected = kv_blocks_for(q->n_tokens) + (int)output_blocks_expected(left);
    return expected < max ? expected : max;
}

// Returns how many free blocks the running sequences are expected to need: at least one for each that can still grow.
static int running_blocks_reserved(const struct scheduler *s)
{
    int reserved = 0;
    for (int i = 0; i < s->n_running; i++) {
        const struct sequence *q = s->running[i];
        int more = sequence_blocks_expected(q) - q->n_blocks;
        if (more < 1) more = q->n_blocks < sequence_blocks_max(q);
        reserved += more;
    }
    return reserved;
}

int admission_grow_for_draft(struct scheduler *s, struct sequence *q, int rows)
{
    int more = kv_blocks_for(q->n_tokens + rows) - q->n_blocks;
    bool others_wait = s->queue.n && s->n_running < s->limits.max_seqs;
    if (more > 0 && !others_wait && more + running_blocks_reserved(s) <= block_manager_n_free(s->blocks))
        sequence_allocate_blocks(s, q, q->n_tokens + rows);
    int room = q->n_blocks * KV_BLOCK_TOKENS - q->n_tokens;
    return rows < room ? rows : room;
}

void admission_shrink(struct scheduler *s, struct sequence *q)
{
    int needed = kv_blocks_for(q->n_cached + 1);
    if (q->n_blocks <= needed) return;
    block_manager_release(s->blocks, q->blocks + needed, q->n_blocks - needed);
    q->n_blocks = needed;
}

bool admission_may_start(const struct scheduler *s, struct sequence *q)
{
    int needed = sequence_blocks_expected(q) - admission_cached_entries(s, q) / KV_BLOCK_TOKENS;
    return s->n_running < s->limits.max_seqs && needed + running_blocks_reserved(s) <= block_manager_n_free(s->blocks);
}

static bool try_start(struct scheduler *s, struct sequence *q)
{
    if (s->n_running == s->limits.max_seqs) return false;
    sequence_acquire_prefix(s, q); // before free blocks are counted: acquired blocks are no longer free
    if (sequence_blocks_expected(q) - q->n_blocks + running_blocks_reserved(s) > block_manager_n_free(s->blocks)) {
        sequence_release_blocks(s, q);
        return false;
    }
    bool allocated = sequence_allocate_blocks(s, q, q->n_tokens);
    INVARIANT(allocated, "%d blocks are free, %d tokens need more", block_manager_n_free(s->blocks), q->n_tokens);
    if (!q->started) {
        q->n_reused = q->n_cached < q->n_kept ? q->n_cached : q->n_kept;
        q->host_pass = s->n_passes;
    }
    q->started = true;
    s->reused_rows += (uint64_t)q->n_cached;
    sequence_queue_remove(&s->queue, q);
    s->running[s->n_running++] = q;
    if (s->n_running > s->most_running) s->most_running = s->n_running;
    return true;
}

bool admission_start(struct scheduler *s, struct sequence *q)
{
    while (!try_start(s, q))
        if (!preempt_paused(s)) return false;
    return true;
}
