// SPDX-License-Identifier: Apache-2.0
// Chooses the rows of a pass: decode rows first, then prompt rows within the token budget and the pace.
#include <limits.h>

#include "worker/scheduler_state.h"

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static bool is_decode(const struct sequence *q)
{
    return sequence_pending(q) == 1 && !q->is_paused;
}

static bool is_prompt(const struct sequence *q)
{
    return sequence_pending(q) != 1 && !q->is_paused;
}

// ---- draft rows ----

// Returns how many rows (up to `limit`) prompts other than `q` could still use in this pass. Draft rows get the rest.
static int prompt_rows_wanted(const struct scheduler *s, const struct pass_builder *b, const struct sequence *q,
                              int limit)
{
    int64_t rows = 0;
    for (int i = 0; i < s->n_running && rows < limit; i++) {
        const struct sequence *other = s->running[i];
        bool has_rows = pass_builder_contains(b, other);
        if (other != q && !has_rows && is_prompt(other)) rows += sequence_pending(other);
    }
    for (struct sequence *other = s->queue.head; other && rows < limit; other = other->next) {
        if (other->is_paused || admission_waits_for_prefix(s, other)) continue;
        if (!admission_may_start(s, other)) break; // later sequences do not start either
        rows += sequence_pending(other);
    }
    return rows < limit ? (int)rows : limit;
}

// Returns how many draft rows (up to `most`) fit after the sequence's `n` pending rows. Returns 0 if these rows are
// only a part of a prompt, or if the log-probabilities of the prompt are wanted. Also returns 0 if the host samples the
// sequence while pacing limits the rows of the host.
static int draft_rows(struct scheduler *s, const struct pass_builder *b, struct sequence *q, int n, int most)
{
    int room = min_int(pass_builder_rows_left(b) - n - b->decodes_left, b->logit_rows_left);
    int wanted = min_int(min_int(q->n_draft, most), sequence_short_tokens_left(q));
    if (wanted == 0 || room <= 0 || n < sequence_pending(q)) return 0;
    if ((b->host_is_paced && pass_builder_host_samples(b, q)) || sequence_wants_prompt_logprobs(q)) return 0;
    int rows = min_int(wanted, room - prompt_rows_wanted(s, b, q, room));
    return rows > 0 ? admission_grow_for_draft(s, q, rows) : 0;
}

// ---- rows of a prompt ----

// Adds as many rows of a prompt as the pass has room for and the pace allows. If the host may sample no more rows, the
// last pending row is left for a later pass and not charged.
static void add_prompt_rows(struct scheduler *s, struct pass_builder *b, struct sequence *q)
{
    int pending = sequence_pending(q), rows = pass_builder_prompt_rows(b, q, q->n_cached);
    if (rows == pending && b->host_rows_left == 0 && pass_builder_host_samples(b, q)) rows--;
    bool whole = rows == pending && !q->is_chunked;
    int n = rows > 0 ? pace_budget_grant_rows(&b->budget, q->n_cached, rows, whole) : 0;
    if (n > 0 && n < pending) q->is_chunked = true;
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    int decodes = b->budget.rows.decodes;
    int drafts = is_paced ? draft_pace_first_rows(&s->draft_pace, decodes, q->n_draft) : q->n_draft;
    drafts = pace_budget_grant_draft_rows(&b->budget, q->n_tokens, draft_rows(s, b, q, n, drafts));
    pass_builder_add_rows(b, q, n, drafts);
}

// ---- prompts ahead of a long one ----

// Returns the running sequence in prefill that was started first, or NULL.
static struct sequence *oldest_prompt(const struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++)
        if (is_prompt(s->running[i])) return s->running[i];
    return NULL;
}

// Returns true if this pass can complete the prompt, of which `entries` entries are cached.
static bool fits_prompt(const struct pass_builder *b, const struct sequence *q, int entries)
{
    int pending = q->n_tokens - entries;
    return pending == pass_builder_prompt_rows(b, q, entries) &&
           pace_budget_would_grant(&b->budget, entries, pending, !q->is_chunked);
}

// Returns the prompt with the fewest pending rows, or NULL. Only prompts without rows in this pass count, and only
// prompts with fewer pending rows than `longest`. If the prompt waits in the queue, it is started.
static struct sequence *start_shortest_prompt(struct scheduler *s, const struct pass_builder *b,
                                              const struct sequence *longest)
{
    int fewest = sequence_pending(longest);
    struct sequence *running = NULL, *waiting = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (!is_prompt(q) || pass_builder_contains(b, q) || sequence_pending(q) >= fewest) continue;
        fewest = sequence_pending(q);
        running = q;
    }
    for (struct sequence *q = s->queue.head; q; q = q->next) {
        if (q->is_paused || sequence_pending(q) >= fewest || admission_waits_for_prefix(s, q)) continue;
        fewest = sequence_pending(q);
        waiting = q;
    }
    return waiting && admission_start(s, waiting) ? waiting : running;
}

// Adds whole prompts that fit, running ones first, then one chunk of the shortest remaining prompt.
static void add_short_prompts(struct scheduler *s, struct pass_builder *b, const struct sequence *longest)
{
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (is_prompt(q) && q != longest && fits_prompt(b, q, q->n_cached)) add_prompt_rows(s, b, q);
    }
    for (struct sequence *q = s->queue.head, *next; q; q = next) {
        next = q->next;
        if (q->is_paused || !fits_prompt(b, q, admission_cached_entries(s, q)) || admission_waits_for_prefix(s, q))
            continue;
        if (!admission_start(s, q)) break;
        add_prompt_rows(s, b, q);
    }
    if (pass_builder_rows_left(b) <= 0 || !pace_budget_has_rows(&b->budget, false)) return;
    struct sequence *shortest = start_shortest_prompt(s, b, longest);
    if (shortest) add_prompt_rows(s, b, shortest);
}

// If the oldest prompt is too long for this pass, adds short prompts in half of the rows and of the budget.
static void add_prompts_before_long(struct scheduler *s, struct pass_builder *b)
{
    const struct sequence *oldest = oldest_prompt(s);
    if (!oldest || fits_prompt(b, oldest, oldest->n_cached)) return;
    struct pass_builder half = pass_builder_half(b);
    add_short_prompts(s, &half, oldest);
    pass_builder_merge(b, &half);
}

// ---- decode rows ----

// Sets how many logit rows the host may read. There is no limit if the host reads rows of all running sequences.
// Returns how many of these logit rows decodes may use, which is half if prompts want log-probabilities.
static int limit_host_rows(const struct scheduler *s, struct pass_builder *b)
{
    bool others = false, rates_prompts = false;
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i]->is_paused) continue;
        bool rates = sequence_wants_prompt_logprobs(s->running[i]);
        rates_prompts |= rates;
        others |= !rates && !pass_builder_host_samples(b, s->running[i]);
    }
    b->host_rows_left = others ? pace_sampled_max(&s->pace) : INT_MAX;
    b->host_is_paced = b->host_rows_left < INT_MAX;
    return rates_prompts ? b->host_rows_left - b->host_rows_left / 2 : b->host_rows_left;
}

static int decodes_on_host(const struct scheduler *s, const struct pass_builder *b)
{
    int n = 0;
    for (int i = 0; i < s->n_running; i++)
        n += is_decode(s->running[i]) && pass_builder_host_samples(b, s->running[i]);
    return n;
}

// Returns the longest-waiting decoding sequence without a row in this pass, or NULL.
static struct sequence *longest_waiting_decode(const struct scheduler *s, const struct pass_builder *b)
{
    struct sequence *oldest = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (!is_decode(q) || pass_builder_contains(b, q)) continue;
        if (!oldest || q->host_pass < oldest->host_pass) oldest = q;
    }
    return oldest;
}

static void add_decode_row(struct scheduler *s, struct pass_builder *b, struct sequence *q)
{
    b->decodes_left--;
    pass_builder_add_rows(b, q, 1, draft_rows(s, b, q, 1, b->drafts_max));
}

// Uses prompt lookup for decoding sequences without a draft, or for all decoding sequences while lookup is accepted
// more often. Returns the length of the longest draft of a decoding sequence.
static int look_up_drafts(struct scheduler *s)
{
    bool instead = draft_pace_prefers_lookup(&s->draft_pace);
    int longest = 0;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (!is_decode(q)) continue;
        if (!q->n_draft || (instead && !q->draft_from_lookup)) sequence_lookup_draft(q, s->config);
        if (q->n_draft > longest) longest = q->n_draft;
    }
    return longest;
}

// Returns the largest number of draft rows of a sequence in a pass with `decodes` decode rows. Returns 0 if prompts
// wait for a measurement of these decode rows.
static int choose_drafts_max(struct scheduler *s, const struct pass_builder *b, int decodes)
{
    int longest = look_up_drafts(s);
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    if (pace_measures_decodes(&s->pace, decodes) && prompt_rows_wanted(s, b, NULL, 1)) return 0;
    return is_paced ? draft_pace_rows(&s->draft_pace, decodes, longest) : longest;
}

// Adds a row for each decoding sequence that the backend samples. Adds rows of sequences that the host samples up to
// the limit. If the limit is too low for all of these, they take turns.
static void add_decode_rows(struct scheduler *s, struct pass_builder *b)
{
    int turns = limit_host_rows(s, b), on_host = decodes_on_host(s, b);
    bool all = on_host <= turns;
    for (int i = 0; i < s->n_running; i++)
        b->decodes_left += is_decode(s->running[i]);
    b->drafts_max = choose_drafts_max(s, b, all ? b->decodes_left : b->decodes_left - on_host + turns);
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (is_decode(q) && (all || !pass_builder_host_samples(b, q))) add_decode_row(s, b, q);
    }
    for (; !all && turns > 0; turns--)
        add_decode_row(s, b, longest_waiting_decode(s, b));
    b->decodes_left = 0;
}

// ---- the pass ----

static void add_running_prompts(struct scheduler *s, struct pass_builder *b)
{
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (is_prompt(q) && !pass_builder_contains(b, q)) add_prompt_rows(s, b, q);
    }
}

// Adds prompts in the order of the queue. Prompts that wait for a prefix are passed over.
static void add_waiting_prompts(struct scheduler *s, struct pass_builder *b)
{
    for (struct sequence *q = s->queue.head, *next; q && pass_builder_rows_left(b) > 0; q = next) {
        next = q->next;
        bool whole = q->n_tokens <= pass_builder_rows_left(b);
        if (q->is_paused || !pace_budget_has_rows(&b->budget, whole) || admission_waits_for_prefix(s, q)) continue;
        if (!admission_start(s, q)) return;
        add_prompt_rows(s, b, q);
    }
}

// Returns the largest number of rows of a pass. In a pass of background sequences, a row for each decode is left.
static int rows_max(const struct scheduler *s)
{
    enum { PART = 32, PROMPT_ROWS_MIN = 32 };
    int budget = s->limits.token_budget, rows = s->n_running + PROMPT_ROWS_MIN;
    if (!s->is_background) return budget;
    if (rows < budget / PART) rows = budget / PART;
    return min_int(rows, budget);
}

static struct pass_limits pass_limits_of(struct scheduler *s, const struct batch_limits *batch)
{
    int sequences = min_int(s->limits.max_seqs, s->n_running + s->queue.n);
    return (struct pass_limits){.number = s->n_passes,
                                .rows = rows_max(s),
                                .spare_logit_rows = batch->logit_rows - sequences,
                                .config = s->config,
                                .backend_samples = s->backend_samples,
                                .pace = &s->pace};
}

const struct ragged_batch *pass_compose(struct scheduler *s, struct scheduled_pass *pass)
{
    s->n_passes++;
    admission_pause(s);
    admission_grow(s);
    struct pass_limits limits = pass_limits_of(s, &pass->builder.limits);
    struct pass_builder b;
    pass_builder_begin(&b, pass, &limits);
    add_decode_rows(s, &b); // first, because a long prompt must not delay running sequences
    pace_budget_set_decodes(&b.budget, pass->builder.batch.n_seqs);
    add_prompts_before_long(s, &b);
    add_running_prompts(s, &b);
    add_waiting_prompts(s, &b);
    s->prompt_rows += (uint64_t)pass->prompt_rows;
    s->drafted += (uint64_t)pass->draft_rows;
    return pass_builder_finish(&b);
}
