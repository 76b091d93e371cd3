// SPDX-License-Identifier: Apache-2.0
#include "sim/pass_model.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/oracle_group.h"
#include "sim/pace_model.h"

#define ROUNDING 1e-9 // relative, of sums of work

enum { ANY = INT_MAX / 2, COPIES_COMPARED = 24, FIRST_ROWS = 16 };

// --- sequences

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int pending(const struct pass_sequence *x)
{
    return x->q->n_tokens - x->cached;
}

static bool is_decode(const struct pass_sequence *x)
{
    return pending(x) == 1;
}

static bool rates_prompt(const struct pass_sequence *x)
{
    return x->q->next_logprob < x->q->n_kept;
}

static bool host_samples(const struct pass_model *m, const struct pass_sequence *x, int drafted)
{
    return !m->s->backend_samples || sampling_needs_host(&x->q->sampling, x->q->n_tokens - x->q->n_kept + drafted);
}

// --- KV blocks and the prefix cache

// The cached blocks of a waiting sequence, and how many of them no sequence references.
static int cached_blocks(struct pass_model *m, const struct pass_sequence *x, int *n_free_p)
{
    int32_t *blocks = mem_alloc_array((size_t)x->q->n_tokens / KV_BLOCK_TOKENS + 1, sizeof *blocks);
    int n = m->s->limits.prefix_cache ? group_cached_blocks(m->s, x->q, blocks) : 0;
    *n_free_p = 0;
    for (int i = 0; i < n; i++)
        *n_free_p += !m->refs[blocks[i]];
    free(blocks);
    m->is_unknown |= *n_free_p && m->blank_blocks < 0; // some of them may have been evicted
    return n;
}

static int blocks_most(const struct pass_sequence *x)
{
    return kv_blocks_for(x->q->n_kept + x->q->sampling.max_tokens - 1);
}

// Blocks that the running sequences are expected to need beside theirs; one at least for each that grows.
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

// A running sequence computes two blocks or more that the waiting one can use and the cache does not have yet.
static bool waits(struct pass_model *m, const struct pass_sequence *x)
{
    if (!m->s->limits.prefix_cache || rates_prompt(x)) return false;
    int n_free, cached = cached_blocks(m, x, &n_free);
    for (int i = 0; i < m->n_running; i++) {
        int common = group_blocks_common(x->q, m->running[i]->q);
        if (common >= cached + 2 && common > m->running[i]->cached / KV_BLOCK_TOKENS) return true;
    }
    return false;
}

static bool may_start(struct pass_model *m, const struct pass_sequence *x)
{
    int n_free, cached = cached_blocks(m, x, &n_free);
    return m->n_running < m->s->limits.max_seqs &&
           group_blocks_expected(x->q) - cached + blocks_reserved(m) <= m->free_blocks;
}

static bool start(struct pass_model *m, struct pass_sequence *x)
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

// --- the budget of prompts

static bool is_unlimited(const struct pass_model *m, bool whole)
{
    return isinf(m->budget) || (!m->decodes && whole);
}

static double work_of(const struct pass_model *m, double entries, double rows)
{
    struct shape_work work = pace_shape_work(m->s->config, m->s->pace.balance_rows);
    return rows * work.row + rows * (entries + rows / 2) * work.pair;
}

static double reading_of(const struct pass_model *m, double entries)
{
    return m->decodes ? entries * pace_shape_work(m->s->config, m->s->pace.balance_rows).entry : 0;
}

// The most rows whose work is within the budget, found by trying.
static int rows_within(struct pass_model *m, int entries, double budget, int most)
{
    int low = 0, high = most + 1; // `low` fit, `high` do not
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(work_of(m, entries, middle) <= budget ? &low : &high) = middle;
    }
    double beyond = work_of(m, entries, low + 1);
    m->is_unknown |= low < most && fabs(beyond - budget) <= ROUNDING * beyond;
    m->is_unknown |= low > 0 && fabs(work_of(m, entries, low) - budget) <= ROUNDING * budget;
    return low;
}

// A prompt that would spend most of the budget on reading what it has computed gets none.
static int rows_in_budget(struct pass_model *m, int entries, int most)
{
    double reading = reading_of(m, entries), border = 0.65 * m->budget;
    m->is_unknown |= reading > 0 && fabs(reading - border) <= ROUNDING * border;
    if (reading > border || most < 1) return 0;
    int rows = rows_within(m, entries, m->budget - reading, most);
    if (isinf(m->row_budget)) return rows;
    int grown = rows_within(m, entries, m->row_budget, most);
    if (m->is_first && grown < FIRST_ROWS) grown = FIRST_ROWS;
    return least(rows, grown);
}

// Takes the work of rows, and of reading their cached entries, from the budgets.
static void spend(struct pass_model *m, double row_work, double reading)
{
    m->budget = fmax(0, m->budget - row_work - reading);
    m->row_budget = fmax(0, m->row_budget - row_work);
}

static int grant(struct pass_model *m, int entries, int most, bool whole)
{
    int rows = is_unlimited(m, whole) ? most : rows_in_budget(m, entries, most);
    if (!m->decodes && m->is_first && rows < 128) rows = least(128, most);
    if (rows < 1 && m->is_first) {
        m->saved = m->budget;
        m->budget = 0;
    }
    if (rows < 1) return m->is_first = false, 0;
    spend(m, work_of(m, entries, rows), reading_of(m, entries));
    m->is_first = false;
    return rows;
}

static bool would_grant(struct pass_model *m, int entries, int rows, bool whole)
{
    return is_unlimited(m, whole) || rows_in_budget(m, entries, rows) >= rows;
}

static bool has_budget(struct pass_model *m, bool whole)
{
    return m->is_first || would_grant(m, 0, 1, whole);
}

// The time beside the decodes, less what sampling on the host takes of it.
static double budget_of(const struct pass_model *m, int host_rows)
{
    const struct pace *p = &m->s->pace;
    double row = pace_shape_work(m->s->config, 0).row;
    double decodes_us = pace_decodes_us_expected(p->decode_us, p->decode_rows, p->us_per_work[0] * row, m->decodes);
    double target_us = p->target_us == PACE_TWICE ? 2 * decodes_us : (double)p->target_us;
    double added_us = fmax(0.88 * target_us - decodes_us, 0.05 * decodes_us);
    added_us = fmax(added_us / 2, added_us - host_rows * p->sample_us);
    double us = p->us_per_work[1] > 0 ? p->us_per_work[1] : p->us_per_work[0];
    return (us > 0 ? added_us / us : m->row_budget) + p->saved_work;
}

static bool measures_decodes(const struct pass_model *m, int decodes)
{
    const struct pace *p = &m->s->pace;
    return p->target_us != PACE_UNLIMITED && decodes &&
           pace_is_stale(p->decode_us, p->decode_rows, p->mixed_passes, decodes);
}

static void begin_prompts(struct pass_model *m, int host_rows)
{
    const struct pace *p = &m->s->pace;
    m->is_first = true;
    m->budget = m->row_budget = INFINITY;
    m->saved = p->saved_work;
    if (p->target_us == PACE_UNLIMITED) return;
    if (!m->decodes) {
        m->saved = 0;
        if (p->us_per_work[0] > 0) m->budget = 500000 / p->us_per_work[0];
    } else if (measures_decodes(m, m->decodes)) {
        m->is_first = false;
        m->budget = 0;
    } else {
        m->row_budget = fmax(2 * p->mixed_work_max, FIRST_ROWS * pace_shape_work(m->s->config, 0).row);
        m->budget = budget_of(m, host_rows);
        m->saved = 0;
    }
}

// --- rows

static int rows_left(const struct pass_model *m)
{
    return m->rows_max - m->rows;
}

// Rows that prompts beside the one could still use.
static int rows_wanted(struct pass_model *m, const struct pass_sequence *beside, int limit)
{
    int64_t rows = 0;
    for (int i = 0; i < m->n_running; i++) {
        const struct pass_sequence *x = m->running[i];
        if (x != beside && !x->rows && !is_decode(x)) rows += pending(x);
    }
    for (int i = 0; i < m->n_queue && rows < limit; i++) {
        if (waits(m, m->queue[i])) continue;
        if (!may_start(m, m->queue[i])) break;
        rows += pending(m->queue[i]);
    }
    return rows < limit ? (int)rows : limit;
}

// Draft rows for which the sequence has blocks, or gets free ones that no other is expected to need.
static int draft_blocks(struct pass_model *m, struct pass_sequence *x, int rows)
{
    int more = kv_blocks_for(x->q->n_tokens + rows) - x->blocks;
    bool others_wait = m->n_queue && m->n_running < m->s->limits.max_seqs;
    if (more > 0 && !others_wait && more + blocks_reserved(m) <= m->free_blocks) {
        take_blocks(m, more);
        x->blocks += more;
    }
    return least(rows, x->blocks * KV_BLOCK_TOKENS - x->q->n_tokens);
}

static int draft_rows(struct pass_model *m, struct pass_sequence *x, int rows, int most)
{
    int room = least(rows_left(m) - rows - m->decodes_to_come, m->logit_rows), wanted = least(x->draft, most);
    bool is_limited = m->host_is_paced && host_samples(m, x, 0);
    if (!wanted || room <= 0 || rows < pending(x) || is_limited || rates_prompt(x)) return 0;
    int n = least(wanted, room - rows_wanted(m, x, room));
    return n > 0 ? draft_blocks(m, x, n) : 0;
}

// A row whose logits the host reads.
static void host_row(struct pass_model *m)
{
    m->counts.host_sampled++;
    if (m->host_rows > 0) m->host_rows--;
    if (m->s->backend_samples && m->s->pace.us_per_work[1] > 0)
        spend(m, 0, m->host_us_per_row / m->s->pace.us_per_work[1]);
}

static void add_rows(struct pass_model *m, struct pass_sequence *x, int rows, int drafts)
{
    if (!rows) return;
    bool is_complete = rows == pending(x);
    int rated = 0;
    drafts = is_complete ? drafts : 0;
    for (int i = x->cached; rates_prompt(x) && i < x->cached + rows; i++)
        rated += i + 1 >= x->q->next_logprob && i + 1 < x->q->n_kept;
    MEM_GROW(m->parts, m->n_parts, m->parts_capacity);
    m->parts[m->n_parts++] =
        (struct pass_part){x->cached, rows + drafts, x->q->tokens[x->cached], x->q->positions[x->cached]};
    m->rows += rows + drafts;
    m->counts.prompt_rows += (uint64_t)(x->cached < x->q->n_kept ? least(rows, x->q->n_kept - x->cached) : 0);
    m->counts.drafted += (uint64_t)drafts;
    x->rows = rows + drafts;
    for (int i = 0; i < rated; i++)
        host_row(m);
    for (int i = 0; is_complete && i <= drafts; i++)
        if (host_samples(m, x, i)) host_row(m);
    if (rated) m->logit_rows -= rated - !is_complete;
    m->logit_rows -= drafts;
}

// Pending rows that the pass has room for, and for their logits.
static int prompt_rows(const struct pass_model *m, const struct pass_sequence *x, int entries)
{
    int rows = least(x->q->n_tokens - entries, rows_left(m));
    if (!rates_prompt(x)) return rows;
    int first = x->q->next_logprob - 1, unrated = first > entries ? first - entries : 0;
    int logits = least(m->logit_rows, m->host_rows > 0 ? m->host_rows - 1 : 0);
    return least(rows, unrated + 1 + logits);
}

static void add_prompt(struct pass_model *m, struct pass_sequence *x)
{
    int most = prompt_rows(m, x, x->cached);
    bool waits_for_host = m->host_rows == 0 && host_samples(m, x, 0);
    if (most == pending(x) && waits_for_host) most--; // for the last row
    if (!most) return;
    int rows = grant(m, x->cached, most, most == pending(x) && !x->is_chunked);
    bool is_paced = m->s->limits.pace_us != PACE_UNLIMITED;
    int drafts = is_paced ? draft_pace_first_rows(&m->s->draft_pace, m->decodes, x->draft) : x->draft;
    drafts = draft_rows(m, x, rows, drafts);
    if (rows > 0 && rows < pending(x)) x->is_chunked = true;
    if (!is_unlimited(m, true)) drafts = rows_within(m, x->q->n_tokens, fmin(m->budget, m->row_budget), drafts);
    spend(m, work_of(m, x->q->n_tokens, drafts), 0);
    add_rows(m, x, rows, drafts);
}

// --- decodes

static bool is_waiting_decode(const struct pass_sequence *x)
{
    return is_decode(x) && !x->rows;
}

static void add_decode(struct pass_model *m, struct pass_sequence *x, int drafts_max)
{
    m->decodes_to_come--;
    add_rows(m, x, 1, draft_rows(m, x, 1, drafts_max));
}

static int common_past(const int32_t *tokens, int a, int b)
{
    int n = 0;
    while (n < COPY_MATCH_MAX && n < a && tokens[a - n - 1] == tokens[b - n - 1])
        n++;
    return n;
}

// The tokens behind the latest place with the longest past in common with the end of the sequence, as many as that.
static void copy_draft(struct pass_model *m, struct pass_sequence *x)
{
    const struct sequence *q = x->q;
    const int32_t *tokens = q->tokens;
    const struct model_config *config = m->s->config;
    int place = 0, longest = 0, n = q->n_tokens, left = q->n_kept + q->sampling.max_tokens - n - 1, alike = 0;
    for (int at = n - 1; at >= COPY_MATCH_MIN; at--) {
        int past = common_past(tokens, at, n);
        alike += past >= COPY_MATCH_MIN;
        if (past >= COPY_MATCH_MIN && past > longest) longest = past, place = at;
    }
    if (alike > COPIES_COMPARED) m->is_unknown = true; // the group compares the latest ones
    if (!place || left <= 0) return;
    int most = least(least(longest, COPY_DRAFT_MAX), left);
    for (x->draft = 0; x->draft < most; x->draft++) // behind its last token the sequence repeats itself
        if (sampler_stops(&q->sampling, config->eos_id, config->n_eos, tokens[place + x->draft % (n - place)])) break;
}

static int drafts_max_of(struct pass_model *m)
{
    struct draft_pace copy = m->s->draft_pace;
    bool instead = draft_pace_prefers_copies(&copy);
    int longest = 0;
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x)) continue;
        if (x->q->copies && (!x->draft || (instead && !x->q->is_copied))) copy_draft(m, x);
        if (x->draft > longest) longest = x->draft;
    }
    if (measures_decodes(m, m->decodes_to_come) && rows_wanted(m, NULL, 1)) return 0;
    return m->s->limits.pace_us == PACE_UNLIMITED ? longest : draft_pace_rows(&copy, m->decodes_to_come, longest);
}

// Rows that the host may read beside sequences that the backend samples: half of the time beside the decodes.
static int host_rows_max(const struct pass_model *m)
{
    const struct pace *p = &m->s->pace;
    bool others = false;
    for (int i = 0; i < m->n_running; i++)
        others |= !rates_prompt(m->running[i]) && !host_samples(m, m->running[i], 0);
    if (!others || p->target_us == PACE_UNLIMITED || p->decode_us == 0 || p->sample_us == 0) return ANY;
    double target_us = p->target_us == PACE_TWICE ? 2 * p->decode_us : (double)p->target_us;
    double rows = fmax(0.88 * target_us - p->decode_us, 0.05 * p->decode_us) / 2 / p->sample_us;
    return rows < 1 ? 1 : rows < ANY - 1 ? (int)rows : ANY - 1;
}

// Of those that the host samples, the one that has waited longest for a row.
static struct pass_sequence *next_turn(const struct pass_model *m)
{
    struct pass_sequence *next = NULL;
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (is_waiting_decode(x) && host_samples(m, x, 0) && (!next || x->q->host_pass < next->q->host_pass)) next = x;
    }
    return next;
}

static void add_decodes(struct pass_model *m)
{
    int on_host = 0;
    bool rates = false;
    m->host_rows = host_rows_max(m);
    m->host_is_paced = m->host_rows < ANY;
    for (int i = 0; i < m->n_running; i++) {
        m->decodes_to_come += is_decode(m->running[i]);
        on_host += is_decode(m->running[i]) && host_samples(m, m->running[i], 0);
        rates |= rates_prompt(m->running[i]);
    }
    int turns = rates ? m->host_rows - m->host_rows / 2 : m->host_rows, drafts_max = drafts_max_of(m);
    bool all = on_host <= turns;
    for (int i = 0; i < m->n_running; i++)
        if (is_decode(m->running[i]) && (all || !host_samples(m, m->running[i], 0)))
            add_decode(m, m->running[i], drafts_max);
    for (struct pass_sequence *x; !all && turns-- > 0 && (x = next_turn(m));)
        add_decode(m, x, drafts_max);
    m->decodes_to_come = 0;
}

// --- prompts

static bool completes(struct pass_model *m, const struct pass_sequence *x, int entries)
{
    int rows = x->q->n_tokens - entries;
    return prompt_rows(m, x, entries) == rows && would_grant(m, entries, rows, !x->is_chunked);
}

static int entries_cached(struct pass_model *m, const struct pass_sequence *x)
{
    int n_free;
    return KV_BLOCK_TOKENS * cached_blocks(m, x, &n_free);
}

// The shortest prompt without rows; of equals one that runs, and the first.
static struct pass_sequence *shortest_prompt(struct pass_model *m, const struct pass_sequence *longest)
{
    struct pass_sequence *running = NULL, *waiting = NULL;
    int fewest = pending(longest);
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x) && !x->rows && pending(x) < fewest) fewest = pending(running = x);
    }
    for (int i = 0; i < m->n_queue; i++)
        if (pending(m->queue[i]) < fewest && !waits(m, m->queue[i])) fewest = pending(waiting = m->queue[i]);
    return waiting && start(m, waiting) ? waiting : running;
}

static void add_before_long(struct pass_model *m, const struct pass_sequence *longest)
{
    double half = isinf(m->budget) ? 0 : m->budget / 2;
    if (completes(m, longest, longest->cached)) return;
    m->budget -= half;
    m->rows_max -= rows_left(m) / 2;
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x) && x != longest && completes(m, x, x->cached)) add_prompt(m, x);
    }
    for (int i = 0; i < m->n_queue;) {
        struct pass_sequence *x = m->queue[i];
        if (!completes(m, x, entries_cached(m, x)) || waits(m, x)) {
            i++;
            continue;
        }
        if (!start(m, x)) break;
        add_prompt(m, x);
    }
    if (rows_left(m) > 0 && has_budget(m, false)) {
        struct pass_sequence *shortest = shortest_prompt(m, longest);
        if (shortest) add_prompt(m, shortest);
    }
    m->rows_max = m->s->limits.token_budget;
    m->budget += half + m->saved;
    m->saved = 0;
    m->is_first = !m->decodes || m->budget > 0;
}

static void add_prompts(struct pass_model *m)
{
    struct pass_sequence *longest = NULL;
    for (int i = 0; i < m->n_running && !longest; i++)
        if (!is_decode(m->running[i])) longest = m->running[i];
    if (longest) add_before_long(m, longest);
    for (int i = 0; i < m->n_running; i++)
        if (!is_decode(m->running[i]) && !m->running[i]->rows) add_prompt(m, m->running[i]);
    for (int i = 0; i < m->n_queue && rows_left(m) > 0;) {
        struct pass_sequence *x = m->queue[i];
        if (!has_budget(m, x->q->n_tokens <= rows_left(m)) || waits(m, x)) {
            i++;
            continue;
        }
        if (!start(m, x)) return;
        add_prompt(m, x);
    }
}

// --- preemption

// Entries that would have to be computed again: those in blocks that no other sequence has.
static int entries_lost(const struct pass_model *m, const struct pass_sequence *x)
{
    int shared = 0;
    while (shared < x->q->n_published && m->refs[x->q->blocks[shared]] > 1)
        shared++;
    return x->cached - shared * KV_BLOCK_TOKENS;
}

// The running sequence that loses the fewest entries, of equals the last.
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
        bool is_new = b >= x->q->n_blocks; // of this pass
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

// Each running sequence gets a block for its next row.
static void grow(struct pass_model *m)
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

// --- before and after

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

static struct pass_counts counts_of(const struct scheduler *s)
{
    return (struct pass_counts){s->preemptions, s->prompt_rows,  s->reused_rows,
                                s->drafted,     s->host_sampled, (uint64_t)s->most_running};
}

static void read_group(struct pass_model *m)
{
    const struct scheduler *s = m->s;
    m->n_sequences = m->n_running = m->n_queue = m->n_parts = m->rows = m->decodes_to_come = 0;
    m->counts = counts_of(s);
    m->is_unknown = false;
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
    m->rows_max = s->limits.token_budget;
    m->logit_rows = s->builder.limits.logit_rows - least(s->limits.max_seqs, m->n_sequences);
    m->host_us_per_row = s->pace.sample_us;
    m->budget = INFINITY; // until the decode rows are there
}

void pass_model_before(struct pass_model *m, const struct scheduler *s)
{
    m->s = s;
    read_group(m);
    grow(m);
    add_decodes(m);
    m->decodes = m->n_parts;
    int host_rows = 0;
    for (int i = 0; i < m->n_running && s->backend_samples; i++)
        for (int k = 0; k < m->running[i]->rows; k++)
            host_rows += host_samples(m, m->running[i], k);
    begin_prompts(m, host_rows);
    add_prompts(m);
}

// Of the sequences that ran, only those may wait that were to be preempted, whatever was started afterwards.
static bool victims_are_right(const struct pass_model *m, const struct scheduler *s)
{
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        for (int i = 0; i < m->n_sequences; i++)
            if (m->sequences[i].id == q->id && m->sequences[i].has_run && !m->sequences[i].is_preempted) return false;
    return true;
}

const char *pass_model_after(const struct pass_model *m, const struct scheduler *s)
{
    const struct ragged_batch *batch = &s->builder.batch;
    struct pass_counts counts = counts_of(s);
    if (counts.preemptions != m->counts.preemptions) return "more or fewer sequences were preempted than the rules say";
    if (!victims_are_right(m, s)) return "a sequence was preempted though another one would have lost less";
    if (m->is_unknown) return NULL;
    if (memcmp(&counts, &m->counts, sizeof counts) != 0) return "a pass was counted with other rows than it has";
    if (s->queue.n != m->n_queue) return "more or fewer sequences were started than the rules say";
    if (batch->n_seqs != m->n_parts) return "a pass has more or fewer sequences than the rules say";
    for (int i = 0; i < m->n_parts; i++) {
        const struct pass_part *part = &m->parts[i];
        int first = batch->row_start[i];
        if (batch->kv_len[i] != part->cached || batch->token[first] != part->token ||
            batch->position[first] != part->position)
            return "a pass has another sequence than the rules say";
        if (batch->row_start[i + 1] - first != part->rows) return "a sequence has another number of rows in a pass";
    }
    return fabs(s->pace.saved_work - m->saved) > 1e-6 * m->saved ? "another budget is saved for the next pass" : NULL;
}

void pass_model_fini(struct pass_model *m)
{
    free(m->sequences);
    free(m->running);
    free(m->queue);
    free(m->parts);
    free(m->refs);
    *m = (struct pass_model){.n_parts = 0};
}
