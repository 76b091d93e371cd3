// SPDX-License-Identifier: Apache-2.0
// Which rows a pass contains: decode rows first, then prompt rows within the token budget and the pace.
#include <limits.h>

#include "worker/scheduler_state.h"

// ---- rows ----

static int pass_rows_left(const struct scheduler *s)
{
    return s->rows_max - s->builder.batch.n_rows;
}

struct sampler_context pass_sampler_context(const struct scheduler *s, const struct sequence *q, int drafted)
{
    return (struct sampler_context){
        .sampling = &q->sampling,
        .eos = s->config->eos_id,
        .n_eos = s->config->n_eos,
        .prompt = q->penalty_ids ? q->penalty_ids : q->tokens,
        .n_prompt = q->penalty_ids ? q->n_penalty_ids : q->n_kept,
        .output = q->tokens + q->n_kept,
        .n_output = sequence_generated(q) + drafted,
        .allowed = q->mask,
    };
}

bool pass_is_sampled_by_backend(const struct scheduler *s, const struct sampler_context *context)
{
    return s->backend_samples && sampler_backend_can_sample(context);
}

static bool pass_host_samples(const struct scheduler *s, const struct sequence *q)
{
    struct sampler_context context = pass_sampler_context(s, q, 0);
    return !pass_is_sampled_by_backend(s, &context);
}

static void pass_want_logits(struct scheduler *s, struct host_row row)
{
    batch_builder_want_logits(&s->builder, s->builder.batch.n_rows - 1);
    s->host_rows[s->n_host_rows++] = row;
    if (s->host_rows_left) s->host_rows_left--;
    if (s->backend_samples) pace_add_sampled(&s->pace);
}

// The last row added yields the token behind the sequence's next `drafted` drafted tokens.
static void pass_want_token(struct scheduler *s, struct sequence *q, int drafted)
{
    struct sampler_context context = pass_sampler_context(s, q, drafted);
    if (pass_is_sampled_by_backend(s, &context)) {
        struct row_sampling sampling = sampler_row_sampling(&context);
        batch_builder_want_token(&s->builder, s->builder.batch.n_rows - 1, &sampling);
    } else {
        pass_want_logits(s, (struct host_row){.sequence = q, .drafted = drafted});
        q->pass_host_rows++;
        q->host_pass = s->n_passes;
    }
}

// The row of entry `i` gives the log-probability of the prompt token behind it, unless that has been reported.
static void pass_want_prompt_logprob(struct scheduler *s, struct sequence *q, int i)
{
    if (i + 1 < q->next_logprob || i + 1 >= q->n_kept) return;
    pass_want_logits(s, (struct host_row){.sequence = q, .prompt_token = i + 1});
    q->pass_logprobs++;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

// ---- draft rows ----

// The rows that prompts could still use in this pass, at most `limit`. Draft rows get what they leave.
static int prompt_rows_wanted(const struct scheduler *s, const struct sequence *beside, int limit)
{
    int64_t rows = 0;
    for (int i = 0; i < s->n_running && rows < limit; i++) {
        const struct sequence *q = s->running[i];
        if (q != beside && q->pass_rows == 0 && sequence_pending(q) > 1) rows += sequence_pending(q);
    }
    for (struct sequence *q = s->queue.head; q && rows < limit; q = q->next) {
        if (admission_waits_for_prefix(s, q)) continue;
        if (!admission_may_start(s, q)) break; // nor do those behind it
        rows += sequence_pending(q);
    }
    return rows < limit ? (int)rows : limit;
}

// Draft rows, at most `most`, that the pass has room for, behind the sequence's `n` pending rows. A sequence that the
// host samples has none while pacing limits the rows of the host, and a prompt whose log-probabilities are wanted has
// none yet.
static int pass_draft_rows(struct scheduler *s, struct sequence *q, int n, int most)
{
    int room = min_int(pass_rows_left(s) - n - s->decodes_left, s->logit_rows_left);
    int wanted = min_int(q->n_draft, most);
    if (wanted == 0 || room <= 0 || n < sequence_pending(q)) return 0;
    if ((s->host_is_paced && pass_host_samples(s, q)) || sequence_wants_prompt_logprobs(q)) return 0;
    int rows = min_int(wanted, room - prompt_rows_wanted(s, q, room));
    return rows > 0 ? admission_grow_for_draft(s, q, rows) : 0;
}

static void pass_add_draft(struct scheduler *s, struct sequence *q)
{
    for (int i = 0; i < q->pass_drafts; i++) {
        batch_builder_add_row(&s->builder, q->tokens[q->n_tokens + i], q->positions[q->n_tokens + i]);
        pass_want_token(s, q, i + 1);
    }
    s->logit_rows_left -= q->pass_drafts;
    s->drafted += (uint64_t)q->pass_drafts;
}

// ---- rows of a sequence ----

// Adds the sequence's next n rows, and behind the last pending one its draft rows.
static void pass_add_rows(struct scheduler *s, struct sequence *q, int n, int drafts)
{
    bool is_complete = n == sequence_pending(q);
    q->pass_rows = n;
    q->pass_logprobs = 0;
    q->pass_drafts = is_complete ? drafts : 0;
    q->pass_host_rows = 0;
    if (n == 0) return;
    int of_prompt = q->n_kept - q->n_cached;
    if (of_prompt > 0) s->prompt_rows += (uint64_t)(n < of_prompt ? n : of_prompt);
    s->batched[s->builder.batch.n_seqs] = q;
    batch_builder_add_sequence(&s->builder, q->blocks, q->n_blocks, q->n_cached);
    for (int i = q->n_cached; i < q->n_cached + n; i++) {
        batch_builder_add_row(&s->builder, q->tokens[i], q->positions[i]);
        pass_want_prompt_logprob(s, q, i);
    }
    if (is_complete) pass_want_token(s, q, 0);
    if (q->pass_logprobs) s->logit_rows_left -= q->pass_logprobs - !is_complete;
    pass_add_draft(s, q);
}

// The pending rows of a prompt behind `entries` cached entries, as far as the pass has room for them and for their
// logits. There is room for one row at least: the logits of one are kept for each sequence.
static int pass_prompt_rows(const struct scheduler *s, const struct sequence *q, int entries)
{
    int rows = min_int(q->n_tokens - entries, pass_rows_left(s));
    if (!sequence_wants_prompt_logprobs(q)) return rows;
    int without_logits = q->next_logprob - 1 > entries ? q->next_logprob - 1 - entries : 0;
    return min_int(rows,
                   without_logits + 1 + min_int(s->logit_rows_left, s->host_rows_left ? s->host_rows_left - 1 : 0));
}

// Adds as many rows of a prompt as the pass has room for and the pace allows. The last pending row waits, and is not
// charged, if the host may sample no more rows.
static void pass_add_prompt_rows(struct scheduler *s, struct sequence *q)
{
    int pending = sequence_pending(q), rows = pass_prompt_rows(s, q, q->n_cached);
    if (rows == pending && s->host_rows_left == 0 && pass_host_samples(s, q)) rows--;
    int n = rows > 0 ? pace_grant_rows(&s->pace, q->n_cached, rows, rows == pending && !q->is_chunked) : 0;
    if (n > 0 && n < pending) q->is_chunked = true;
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    int drafts = is_paced ? draft_pace_first_rows(&s->draft_pace, s->pace.decodes, q->n_draft) : q->n_draft;
    pass_add_rows(s, q, n, pace_grant_draft_rows(&s->pace, q->n_tokens, pass_draft_rows(s, q, n, drafts)));
}

// ---- prompts ahead of a long one ----

// Of the running sequences in prefill, the one that was started first; NULL: none.
static struct sequence *oldest_prompt(const struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++)
        if (sequence_pending(s->running[i]) > 1) return s->running[i];
    return NULL;
}

// Whether this pass can complete the prompt, of which `entries` are cached.
static bool pass_fits_prompt(const struct scheduler *s, const struct sequence *q, int entries)
{
    int pending = q->n_tokens - entries;
    return pending == pass_prompt_rows(s, q, entries) && pace_would_grant(&s->pace, entries, pending, !q->is_chunked);
}

// The prompt with the fewest pending rows, fewer than those of `longest`, among prompts without rows in this pass.
// Starts it if it waits in the queue; NULL: none.
static struct sequence *start_shortest_prompt(struct scheduler *s, const struct sequence *longest)
{
    int fewest = sequence_pending(longest);
    struct sequence *running = NULL, *waiting = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) == 1 || q->pass_rows > 0 || sequence_pending(q) >= fewest) continue;
        fewest = sequence_pending(q);
        running = q;
    }
    for (struct sequence *q = s->queue.head; q; q = q->next) {
        if (sequence_pending(q) >= fewest || admission_waits_for_prefix(s, q)) continue;
        fewest = sequence_pending(q);
        waiting = q;
    }
    return waiting && admission_start(s, waiting) ? waiting : running;
}

// Before a prompt that this pass cannot complete, half of the rows and of the pace go to prompts that it can complete,
// then to a chunk of the shortest other prompt.
static void add_short_prompts(struct scheduler *s, const struct sequence *longest)
{
    if (pass_fits_prompt(s, longest, longest->n_cached)) return;
    double reserved = pace_reserve_half(&s->pace);
    s->rows_max -= pass_rows_left(s) / 2;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) > 1 && q != longest && pass_fits_prompt(s, q, q->n_cached)) pass_add_prompt_rows(s, q);
    }
    for (struct sequence *q = s->queue.head, *next; q; q = next) {
        next = q->next;
        if (!pass_fits_prompt(s, q, admission_cached_entries(s, q)) || admission_waits_for_prefix(s, q)) continue;
        if (!admission_start(s, q)) break;
        pass_add_prompt_rows(s, q);
    }
    if (pass_rows_left(s) > 0 && pace_has_budget(&s->pace, false)) {
        struct sequence *shortest = start_shortest_prompt(s, longest);
        if (shortest) pass_add_prompt_rows(s, shortest);
    }
    s->rows_max = s->limits.token_budget;
    pace_release_half(&s->pace, reserved);
}

// ---- the pass ----

static bool is_decode(const struct sequence *q)
{
    return sequence_pending(q) == 1;
}

// Sets how many logit rows the host may read: any number if the host reads rows of all running sequences. Returns how
// many of them are for decode rows: half, if prompts want log-probabilities.
static int limit_host_rows(struct scheduler *s)
{
    bool others = false, rates_prompts = false;
    for (int i = 0; i < s->n_running; i++) {
        bool rates = sequence_wants_prompt_logprobs(s->running[i]);
        rates_prompts |= rates;
        others |= !rates && !pass_host_samples(s, s->running[i]);
    }
    s->host_rows_left = others ? pace_sampled_max(&s->pace) : INT_MAX;
    s->host_is_paced = s->host_rows_left < INT_MAX;
    return rates_prompts ? s->host_rows_left - s->host_rows_left / 2 : s->host_rows_left;
}

static int decodes_on_host(const struct scheduler *s)
{
    int n = 0;
    for (int i = 0; i < s->n_running; i++)
        n += is_decode(s->running[i]) && pass_host_samples(s, s->running[i]);
    return n;
}

// Of the decoding sequences without a row in this pass, the one that has waited longest; NULL: none.
static struct sequence *decode_to_take_turn(const struct scheduler *s)
{
    struct sequence *oldest = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (!is_decode(q) || q->pass_rows > 0) continue;
        if (!oldest || q->host_pass < oldest->host_pass) oldest = q;
    }
    return oldest;
}

static void add_decode_row(struct scheduler *s, struct sequence *q)
{
    s->decodes_left--;
    pass_add_rows(s, q, 1, pass_draft_rows(s, q, 1, s->drafts_max));
}

// Gives decoding sequences copied drafts: those without a draft, or all while these are right more often. Returns the
// length of the longest draft of a decoding sequence.
static int longest_draft(struct scheduler *s)
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

// A pass with `decodes` decode rows that is to measure these, since prompts wait for it, has no draft rows.
static int choose_drafts_max(struct scheduler *s, int decodes)
{
    int longest = longest_draft(s);
    bool is_paced = s->limits.pace_us != PACE_UNLIMITED;
    if (pace_measures_decodes(&s->pace, decodes) && prompt_rows_wanted(s, NULL, 1)) return 0;
    return is_paced ? draft_pace_rows(&s->draft_pace, decodes, longest) : longest;
}

// First, so that a long prompt does not delay the next token of the running sequences.
static void add_decode_rows(struct scheduler *s)
{
    int turns = limit_host_rows(s), on_host = decodes_on_host(s);
    bool all = on_host <= turns;
    for (int i = 0; i < s->n_running; i++)
        s->decodes_left += is_decode(s->running[i]);
    s->drafts_max = choose_drafts_max(s, all ? s->decodes_left : s->decodes_left - on_host + turns);
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (is_decode(q) && (all || !pass_host_samples(s, q))) add_decode_row(s, q);
    }
    for (; !all && turns > 0; turns--)
        add_decode_row(s, decode_to_take_turn(s));
    s->decodes_left = 0;
}

static void add_running_prompts(struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++) {
        struct sequence *q = s->running[i];
        if (sequence_pending(q) > 1 && q->pass_rows == 0) pass_add_prompt_rows(s, q);
    }
}

// In the order of the queue, except for sequences that wait for a prefix.
static void add_waiting_prompts(struct scheduler *s)
{
    for (struct sequence *q = s->queue.head, *next; q && pass_rows_left(s) > 0; q = next) {
        next = q->next;
        if (!pace_has_budget(&s->pace, q->n_tokens <= pass_rows_left(s)) || admission_waits_for_prefix(s, q)) continue;
        if (!admission_start(s, q)) return;
        pass_add_prompt_rows(s, q);
    }
}

const struct ragged_batch *pass_compose(struct scheduler *s)
{
    batch_builder_reset(&s->builder);
    s->n_passes++;
    s->n_host_rows = 0;
    admission_grow(s);
    s->logit_rows_left = s->builder.limits.logit_rows - min_int(s->limits.max_seqs, s->n_running + s->queue.n);
    s->rows_max = s->limits.token_budget;
    for (int i = 0; i < s->n_running; i++)
        s->running[i]->pass_rows = 0;
    add_decode_rows(s);
    pace_pass_begin(&s->pace, s->builder.batch.n_seqs);
    const struct sequence *oldest = oldest_prompt(s);
    if (oldest) add_short_prompts(s, oldest);
    add_running_prompts(s);
    add_waiting_prompts(s);
    return batch_builder_finish(&s->builder);
}
