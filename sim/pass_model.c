// SPDX-License-Identifier: Apache-2.0
#include "sim/pass_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "sim/pass_group.h"

enum { PLACES_COMPARED = 24 };

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

static bool host_samples(const struct pass_model *m, const struct pass_sequence *x, int drafted)
{
    return !m->s->backend_samples || sampling_needs_host(&x->q->sampling, x->q->n_tokens - x->q->n_kept + drafted);
}

// --- rows

static int rows_left(const struct pass_model *m)
{
    return m->rows_max - m->rows;
}

// Returns the rows (up to `limit`) that prompts other than the prompt of `except` could still use.
static int rows_wanted(struct pass_model *m, const struct pass_sequence *except, int limit)
{
    int64_t rows = 0;
    for (int i = 0; i < m->n_running; i++) {
        const struct pass_sequence *x = m->running[i];
        if (x != except && !x->rows && !is_decode(x)) rows += pending(x);
    }
    for (int i = 0; i < m->n_queue && rows < limit; i++) {
        if (pass_group_waits(m, m->queue[i])) continue;
        if (!pass_group_may_start(m, m->queue[i])) break;
        rows += pending(m->queue[i]);
    }
    return rows < limit ? (int)rows : limit;
}

static int draft_rows(struct pass_model *m, struct pass_sequence *x, int rows, int most)
{
    int room = least(rows_left(m) - rows - m->decodes_to_come, m->logit_rows), wanted = least(x->draft, most);
    bool is_limited = m->host_is_paced && host_samples(m, x, 0);
    if (!wanted || room <= 0 || rows < pending(x) || is_limited || pass_rates_prompt(x)) return 0;
    int n = least(wanted, room - rows_wanted(m, x, room));
    return n > 0 ? pass_group_draft_blocks(m, x, n) : 0;
}

// Adds a row whose logits the host reads.
static void host_row(struct pass_model *m)
{
    m->counts.host_sampled++;
    if (m->host_rows > 0) m->host_rows--;
    if (m->s->backend_samples) pass_budget_add_sampled(&m->budget);
}

static void add_rows(struct pass_model *m, struct pass_sequence *x, int rows, int drafts)
{
    if (!rows) return;
    bool is_complete = rows == pending(x);
    int rated = 0;
    drafts = is_complete ? drafts : 0;
    for (int i = x->cached; pass_rates_prompt(x) && i < x->cached + rows; i++)
        rated += i + 1 >= x->q->next_logprob && i + 1 < x->q->n_kept;
    MEM_GROW(m->parts, m->n_parts, m->parts_capacity);
    m->parts[m->n_parts++] =
        (struct predicted_part){x->cached, rows + drafts, x->q->tokens[x->cached], x->q->positions[x->cached]};
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

// Returns the pending rows that fit the pass together with their logits.
static int prompt_rows(const struct pass_model *m, const struct pass_sequence *x, int entries)
{
    int rows = least(x->q->n_tokens - entries, rows_left(m));
    if (!pass_rates_prompt(x)) return rows;
    int first = x->q->next_logprob - 1, unrated = first > entries ? first - entries : 0;
    int logits = least(m->logit_rows, m->host_rows > 0 ? m->host_rows - 1 : 0);
    return least(rows, unrated + 1 + logits);
}

static void add_prompt(struct pass_model *m, struct pass_sequence *x)
{
    int most = prompt_rows(m, x, x->cached);
    bool waits_for_host = m->host_rows == 0 && host_samples(m, x, 0);
    if (most == pending(x) && waits_for_host) most--; // leave out the last row
    if (!most) return;
    int rows = pass_budget_grant(&m->budget, x->cached, most, most == pending(x) && !x->is_chunked);
    bool is_paced = m->s->limits.pace_us != PACE_UNLIMITED;
    int drafts = is_paced ? draft_pace_first_rows(&m->s->draft_pace, m->budget.decodes, x->draft) : x->draft;
    drafts = draft_rows(m, x, rows, drafts);
    if (rows > 0 && rows < pending(x)) x->is_chunked = true;
    add_rows(m, x, rows, pass_budget_grant_drafts(&m->budget, x->q->n_tokens, drafts));
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
    while (n < LOOKUP_MATCH_MAX && n < a && tokens[a - n - 1] == tokens[b - n - 1])
        n++;
    return n;
}

// Drafts by prompt lookup. Finds the latest position with the longest common past with the end of the sequence. Drafts
// as many tokens after this position as match before it.
static void lookup_draft(struct pass_model *m, struct pass_sequence *x)
{
    const struct sequence *q = x->q;
    const int32_t *tokens = q->tokens;
    const struct model_config *config = m->s->config;
    int place = 0, longest = 0, n = q->n_tokens, left = q->n_kept + q->sampling.max_tokens - n - 1, alike = 0;
    for (int at = n - 1; at >= LOOKUP_MATCH_MIN; at--) {
        int past = common_past(tokens, at, n);
        alike += past >= LOOKUP_MATCH_MIN;
        if (past >= LOOKUP_MATCH_MIN && past > longest) longest = past, place = at;
    }
    if (alike > PLACES_COMPARED) m->is_unknown = true; // the group compares only the latest matches
    if (!place || left <= 0) return;
    int most = least(least(longest, LOOKUP_DRAFT_MAX), left);
    for (x->draft = 0; x->draft < most; x->draft++) // the draft wraps around at the sequence's end
        if (sampler_stops(&q->sampling, config->eos_id, config->n_eos, tokens[place + x->draft % (n - place)])) break;
}

// Returns the draft rows of each sequence in a pass with `decodes` decode rows.
static int drafts_max_of(struct pass_model *m, int decodes)
{
    struct draft_pace copy = m->s->draft_pace;
    bool instead = draft_pace_prefers_lookup(&copy);
    int longest = 0;
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x)) continue;
        if (x->q->lookup && (!x->draft || (instead && !x->q->draft_from_lookup))) lookup_draft(m, x);
        if (x->draft > longest) longest = x->draft;
    }
    if (pass_budget_measures_decodes(&m->budget, decodes) && rows_wanted(m, NULL, 1)) return 0;
    return m->s->limits.pace_us == PACE_UNLIMITED ? longest : draft_pace_rows(&copy, decodes, longest);
}

static int host_rows_max(const struct pass_model *m)
{
    bool others = false;
    for (int i = 0; i < m->n_running; i++)
        others |= !pass_rates_prompt(m->running[i]) && !host_samples(m, m->running[i], 0);
    return others ? pass_budget_host_rows(&m->budget) : PASS_ANY_ROWS;
}

// Returns the host-sampled sequence that has waited longest for a row.
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
    m->host_is_paced = m->host_rows < PASS_ANY_ROWS;
    for (int i = 0; i < m->n_running; i++) {
        m->decodes_to_come += is_decode(m->running[i]);
        on_host += is_decode(m->running[i]) && host_samples(m, m->running[i], 0);
        rates |= pass_rates_prompt(m->running[i]);
    }
    int turns = rates ? m->host_rows - m->host_rows / 2 : m->host_rows;
    bool all = on_host <= turns;
    int drafts_max = drafts_max_of(m, m->decodes_to_come - (all ? 0 : on_host - turns));
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
    return prompt_rows(m, x, entries) == rows && pass_budget_would_grant(&m->budget, entries, rows, !x->is_chunked);
}

// Returns the shortest prompt without rows. Among equals, a running sequence comes first, then the order of the queue.
static struct pass_sequence *shortest_prompt(struct pass_model *m, const struct pass_sequence *longest)
{
    struct pass_sequence *running = NULL, *waiting = NULL;
    int fewest = pending(longest);
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x) && !x->rows && pending(x) < fewest) fewest = pending(running = x);
    }
    for (int i = 0; i < m->n_queue; i++)
        if (pending(m->queue[i]) < fewest && !pass_group_waits(m, m->queue[i])) fewest = pending(waiting = m->queue[i]);
    return waiting && pass_group_start(m, waiting) ? waiting : running;
}

static void add_before_long(struct pass_model *m, const struct pass_sequence *longest)
{
    if (completes(m, longest, longest->cached)) return;
    double half = pass_budget_reserve_half(&m->budget);
    m->rows_max -= rows_left(m) / 2;
    for (int i = 0; i < m->n_running; i++) {
        struct pass_sequence *x = m->running[i];
        if (!is_decode(x) && x != longest && completes(m, x, x->cached)) add_prompt(m, x);
    }
    for (int i = 0; i < m->n_queue;) {
        struct pass_sequence *x = m->queue[i];
        if (!completes(m, x, pass_group_cached_entries(m, x)) || pass_group_waits(m, x)) {
            i++;
            continue;
        }
        if (!pass_group_start(m, x)) break;
        add_prompt(m, x);
    }
    if (rows_left(m) > 0 && pass_budget_is_left(&m->budget, false)) {
        struct pass_sequence *shortest = shortest_prompt(m, longest);
        if (shortest) add_prompt(m, shortest);
    }
    m->rows_max = m->s->limits.token_budget;
    pass_budget_release_half(&m->budget, half);
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
        if (!pass_budget_is_left(&m->budget, x->q->n_tokens <= rows_left(m)) || pass_group_waits(m, x)) {
            i++;
            continue;
        }
        if (!pass_group_start(m, x)) return;
        add_prompt(m, x);
    }
}

// --- before and after

static struct pass_counts counts_of(const struct scheduler *s)
{
    return (struct pass_counts){s->preemptions, s->prompt_rows,  s->reused_rows,
                                s->drafted,     s->host_sampled, (uint64_t)s->most_running};
}

void pass_model_before(struct pass_model *m, const struct scheduler *s)
{
    m->s = s;
    m->n_parts = m->rows = m->decodes_to_come = 0;
    m->counts = counts_of(s);
    m->is_unknown = false;
    pass_group_read(m);
    m->rows_max = s->limits.token_budget;
    m->logit_rows = s->pass.builder.limits.logit_rows - least(s->limits.max_seqs, m->n_sequences);
    pass_budget_init(&m->budget, &s->pace, s->config);
    pass_group_grow(m);
    add_decodes(m);
    pass_budget_begin(&m->budget, m->n_parts);
    add_prompts(m);
}

// Checks that no sequence has gone from running to waiting, except the sequences that the model preempted.
static bool victims_are_right(const struct pass_model *m, const struct scheduler *s)
{
    for (const struct sequence *q = s->queue.head; q; q = q->next)
        for (int i = 0; i < m->n_sequences; i++)
            if (m->sequences[i].id == q->id && m->sequences[i].has_run && !m->sequences[i].is_preempted) return false;
    return true;
}

const char *pass_model_after(const struct pass_model *m, const struct scheduler *s)
{
    const struct ragged_batch *batch = &s->pass.builder.batch;
    struct pass_counts counts = counts_of(s);
    if (counts.preemptions != m->counts.preemptions) return "more or fewer sequences were preempted than the rules say";
    if (!victims_are_right(m, s)) return "the preempted sequence is not the one that loses least";
    if (m->is_unknown || m->budget.is_unknown) return NULL;
    if (memcmp(&counts, &m->counts, sizeof counts) != 0) return "the counts of a pass differ from its rows";
    if (s->queue.n != m->n_queue) return "more or fewer sequences were started than the rules say";
    if (batch->n_seqs != m->n_parts) return "a pass has more or fewer sequences than the rules say";
    for (int i = 0; i < m->n_parts; i++) {
        const struct predicted_part *part = &m->parts[i];
        int first = batch->row_start[i];
        if (batch->kv_len[i] != part->cached || batch->token[first] != part->token ||
            batch->position[first] != part->position)
            return "a sequence of a pass does not follow from the rules";
        if (batch->row_start[i + 1] - first != part->rows) return "the number of rows of a sequence in a pass is wrong";
    }
    double saved = m->budget.saved;
    return fabs(s->pace.saved_work - saved) > 1e-6 * saved ? "the budget saved for the next pass is wrong" : NULL;
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
