// SPDX-License-Identifier: Apache-2.0
#include "worker/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

const char *sequence_finish_name(enum sequence_finish finish)
{
    static const char *const names[] = {"none", "stop", "length", "error"};
    return names[finish];
}

static enum status check_ids(const char *what, const int32_t *ids, int n, int vocab_size)
{
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            return status_fail(STATUS_INVALID, "%s: token %u is outside the vocabulary of %d", what, (unsigned)ids[i],
                               vocab_size);
        }
    }
    return STATUS_OK;
}

static enum status check_counts(const struct sequence_request *r)
{
    if (r->n_generated < 0 || r->n_tokens <= r->n_generated) {
        return status_fail(STATUS_INVALID, "%d tokens, %d of them generated: at least one prompt token is needed",
                           r->n_tokens, r->n_generated);
    }
    if (r->prompt_tokens < r->n_tokens - r->n_generated) {
        return status_fail(STATUS_INVALID, "%d prompt tokens kept out of %d", r->n_tokens - r->n_generated,
                           r->prompt_tokens);
    }
    if (r->sampling.max_tokens < 1 || r->n_generated >= r->sampling.max_tokens) {
        return status_fail(STATUS_INVALID, "max_tokens %d with %d generated before: nothing is left to generate",
                           r->sampling.max_tokens, r->n_generated);
    }
    return STATUS_OK;
}

static int range_compare(const void *left, const void *right)
{
    const struct token_range *a = left, *b = right;
    return (a->first > b->first) - (a->first < b->first);
}

// Checks ranges in ascending order and adds up their tokens.
static enum status check_ranges(const struct token_range *ranges, int n, int prompt_tokens, int64_t *count_p)
{
    int64_t after = 0; // the smallest index at which the next range may start
    for (int i = 0; i < n; i++) {
        struct token_range range = ranges[i];
        if (range.first < after || range.last < range.first || range.last >= prompt_tokens) {
            return status_fail(STATUS_INVALID,
                               "kept range %u..%u: ranges must not overlap and lie within a prompt of %d tokens",
                               (unsigned)range.first, (unsigned)range.last, prompt_tokens);
        }
        *count_p += (int64_t)range.last - range.first + 1;
        after = (int64_t)range.last + 1;
    }
    return STATUS_OK;
}

// The ranges are in the order of the rows, which is not always ascending.
static enum status check_kept(const struct sequence_request *r)
{
    int64_t count = r->n_kept_ranges ? 0 : r->prompt_tokens;
    struct token_range *sorted = mem_copy(r->kept, (size_t)r->n_kept_ranges * sizeof *sorted);
    qsort(sorted, (size_t)r->n_kept_ranges, sizeof *sorted, range_compare);
    enum status status = check_ranges(sorted, r->n_kept_ranges, r->prompt_tokens, &count);
    free(sorted);
    TRY(status);
    if (count != r->n_tokens - r->n_generated) {
        return status_fail(STATUS_INVALID, "%d prompt tokens were sent for %lld kept tokens",
                           r->n_tokens - r->n_generated, (long long)count);
    }
    return STATUS_OK;
}

static enum status check_prompt_logprobs(const struct sequence_request *r)
{
    int n_kept = r->n_tokens - r->n_generated;
    if (r->sampling.prompt_logprobs < 0) return STATUS_OK;
    if (n_kept < r->prompt_tokens)
        return status_fail(STATUS_INVALID, "prompt_logprobs: %d of %d prompt tokens are pruned: all must be kept",
                           r->prompt_tokens - n_kept, r->prompt_tokens);
    if (r->logprobs_from >= 1 && r->logprobs_from <= n_kept) return STATUS_OK;
    return status_fail(STATUS_INVALID, "prompt_logprobs: from token %d of a prompt of %d tokens: must be from 1 to %d",
                       r->logprobs_from, n_kept, n_kept);
}

// The last generated token is never computed, so it needs no entry.
static int64_t entries_needed(const struct sequence_request *r)
{
    return (int64_t)r->n_tokens - r->n_generated + r->sampling.max_tokens - 1;
}

static enum status check_room(const struct sequence_request *r, const struct sequence_limits *limits)
{
    int output = sampling_output_max(&r->sampling);
    if ((int64_t)r->prompt_tokens + output > limits->context_tokens) {
        return status_fail(STATUS_OUT_OF_RANGE, "prompt (%d tokens) and max_tokens (%d) exceed the context of %d",
                           r->prompt_tokens, output, limits->context_tokens);
    }
    if (entries_needed(r) > (int64_t)limits->kv_blocks * KV_BLOCK_TOKENS) {
        return status_fail(STATUS_OUT_OF_RANGE, "the sequence needs %lld KV entries, the whole KV cache has %lld",
                           (long long)entries_needed(r), (long long)limits->kv_blocks * KV_BLOCK_TOKENS);
    }
    return STATUS_OK;
}

static enum status check_request(const struct sequence_request *r, const struct sequence_limits *limits)
{
    TRY(sampling_check(&r->sampling, limits->vocab_size));
    TRY(check_counts(r));
    TRY(check_kept(r));
    TRY(check_prompt_logprobs(r));
    TRY(check_room(r, limits));
    TRY(check_ids("token_ids", r->tokens, r->n_tokens, limits->vocab_size));
    return check_ids("penalty_ids", r->penalty_ids, r->n_penalty_ids, limits->vocab_size);
}

enum status sequence_create(const struct sequence_request *r, const struct sequence_limits *limits,
                            struct sequence **sequence_p)
{
    TRY(check_request(r, limits));
    struct sequence *s = mem_alloc(sizeof *s);
    s->id = r->id;
    s->bin = r->bin;
    s->salt = r->salt;
    s->is_background = r->background;
    s->sampling = r->sampling;
    s->sampling.logit_bias = logit_bias_copy(&r->sampling.logit_bias);
    s->sampling.grammar.text = NULL; // the matcher has the grammar, see sequence_set_matcher()
    s->n_kept = r->n_tokens - r->n_generated;
    s->rope = limits->rope;
    s->rope_length = r->prompt_tokens;
    if (s->rope->type == ROPE_LONGROPE) s->rope_length += r->n_generated;
    s->n_tokens = r->n_tokens;
    s->n_matched = r->n_generated;
    s->next_logprob = r->sampling.prompt_logprobs >= 0 ? r->logprobs_from : s->n_kept;
    s->added_us = clock_now_us();
    s->tokens = mem_alloc_array((size_t)s->n_kept + (size_t)r->sampling.max_tokens, sizeof *s->tokens);
    memcpy(s->tokens, r->tokens, (size_t)r->n_tokens * sizeof *s->tokens);

    s->positions = mem_alloc_array((size_t)s->n_kept + (size_t)r->sampling.max_tokens, sizeof *s->positions);
    struct token_range all = {0, r->prompt_tokens - 1};
    const struct token_range *kept = r->n_kept_ranges ? r->kept : &all;
    for (int i = 0, at = 0; at < s->n_kept; i++)
        for (int32_t p = kept[i].first; p <= kept[i].last; p++)
            s->positions[at++] = p;
    for (int i = 0; i < r->sampling.max_tokens; i++)
        s->positions[s->n_kept + i] = r->prompt_tokens + i;

    if (r->n_penalty_ids) {
        s->penalty_ids = mem_copy(r->penalty_ids, (size_t)r->n_penalty_ids * sizeof *s->penalty_ids);
        s->n_penalty_ids = r->n_penalty_ids;
    }
    s->blocks = mem_alloc_array((size_t)kv_blocks_for((int)entries_needed(r)), sizeof *s->blocks);
    if (r->prompt_lookup) {
        s->lookup = mem_alloc(sizeof *s->lookup);
        prompt_lookup_init(s->lookup, s->n_kept + r->sampling.max_tokens);
    }
    *sequence_p = s;
    return STATUS_OK;
}

// Returns how many leading tokens of a draft do not end the sequence.
static int draft_length(const struct sequence *s, const struct model_config *config, const int32_t *tokens, int n)
{
    int most = s->sampling.max_tokens - sequence_generated(s) - 1, i = 0;
    while (i < n && i < most && !sampler_stops(&s->sampling, config->eos_id, config->n_eos, tokens[i]))
        i++;
    return i;
}

enum status sequence_set_draft(struct sequence *s, int from, const int32_t *tokens, int n,
                               const struct model_config *config)
{
    TRY(check_ids("draft", tokens, n, config->vocab_size));
    if (from < 0) return STATUS_OK;
    int known = sequence_generated(s) - from; // leading draft tokens that have been generated already
    if (known < 0 || known >= n) return STATUS_OK;
    if (memcmp(tokens, s->tokens + s->n_kept + from, (size_t)known * sizeof *tokens) != 0) return STATUS_OK;
    s->n_draft = draft_length(s, config, tokens + known, n - known);
    memcpy(s->tokens + s->n_tokens, tokens + known, (size_t)s->n_draft * sizeof *tokens);
    s->draft_from_lookup = false;
    return STATUS_OK;
}

bool sequence_lookup_draft(struct sequence *s, const struct model_config *config)
{
    int match, most = s->sampling.max_tokens - sequence_generated(s) - 1;
    int place = s->lookup && most > 0 ? prompt_lookup_find(s->lookup, s->tokens, s->n_tokens, &match) : 0;
    if (!place) return false;
    if (most > match) most = match; // after a longer match, more of the draft is likely to be accepted
    if (most > LOOKUP_DRAFT_MAX) most = LOOKUP_DRAFT_MAX;
    for (int i = 0; i < most; i++) // one by one, because `place + i` may be within the draft itself
        s->tokens[s->n_tokens + i] = s->tokens[place + i];
    s->n_draft = draft_length(s, config, s->tokens + s->n_tokens, most);
    s->draft_from_lookup = true;
    return true;
}

struct sampler_context sequence_sampler_context(const struct sequence *s, const struct model_config *config,
                                                int drafted)
{
    return (struct sampler_context){
        .sampling = &s->sampling,
        .eos = config->eos_id,
        .n_eos = config->n_eos,
        .prompt = s->penalty_ids ? s->penalty_ids : s->tokens,
        .n_prompt = s->penalty_ids ? s->n_penalty_ids : s->n_kept,
        .output = s->tokens + s->n_kept,
        .n_output = sequence_generated(s) + drafted,
        .allowed = s->mask,
    };
}

void sequence_set_matcher(struct sequence *s, struct grammar_matcher *matcher)
{
    s->matcher = matcher;
    s->mask = mem_alloc_array((size_t)grammar_matcher_mask_words(matcher), sizeof *s->mask);
}

void sequence_free(struct sequence *s)
{
    logit_bias_free(&s->sampling.logit_bias);
    grammar_matcher_free(s->matcher);
    free(s->mask);
    free(s->tokens);
    free(s->positions);
    free(s->penalty_ids);
    if (s->lookup) prompt_lookup_fini(s->lookup);
    free(s->lookup);
    free(s->blocks);
    free(s);
}
