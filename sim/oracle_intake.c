// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_intake.h"

#include <string.h>

#include "worker/sequence.h"

enum { REQUESTS = 32, TOKENS = 24, RANGES = 3 };

struct drawn {
    struct sequence_request request;
    int32_t tokens[TOKENS], penalty_ids[2];
    struct token_range kept[RANGES];
};

// Makes a small valid request; the other functions change it.
static void draw(struct drawn *d, struct random_source *random, const struct scheduler_limits *limits, int vocab)
{
    struct sequence_request *r = &d->request;
    *d = (struct drawn){.request = {.tokens = d->tokens, .kept = d->kept, .penalty_ids = d->penalty_ids}};
    sampling_defaults(&r->sampling);
    r->n_kept_ranges = random_below(random, RANGES + 1);
    for (int i = 0; i < r->n_kept_ranges; i++)
        d->kept[i] = (struct token_range){3 * i, 3 * i + random_below(random, 2)};
    int n_kept = r->n_kept_ranges ? 0 : 1 + random_below(random, 6);
    for (int i = 0; i < r->n_kept_ranges; i++)
        n_kept += d->kept[i].last - d->kept[i].first + 1;
    r->n_generated = random_below(random, 3);
    r->n_tokens = n_kept + r->n_generated;
    r->prompt_tokens = r->n_kept_ranges ? d->kept[r->n_kept_ranges - 1].last + 1 + random_below(random, 2) : n_kept;
    r->n_penalty_ids = random_below(random, 3);
    if (random_below(random, 4) == 0) { // log-probabilities of the prompt, from a random kept token on
        r->sampling.prompt_logprobs = random_below(random, 3);
        r->logprobs_from = random_below(random, n_kept + 2);
    }
    for (int i = 0; i < TOKENS; i++)
        d->tokens[i] = random_below(random, vocab);
    int64_t room = limits->context_tokens - r->prompt_tokens, blocks = (int64_t)limits->kv_blocks * KV_BLOCK_TOKENS;
    int64_t most = blocks - n_kept + 1 < room ? blocks - n_kept + 1 : room;
    r->sampling.max_tokens = random_below(random, 2) && most < 100000 ? (int)most : r->n_generated + 1;
    if (r->n_kept_ranges && !r->n_generated && room >= 0 &&
        random_below(random, 4) == 0) { // a prompt fills the context
        r->sampling.no_output = true;
        r->sampling.max_tokens = 1;
        r->prompt_tokens = limits->context_tokens;
    }
}

static int kept_count(const struct sequence_request *r)
{
    int n = r->n_kept_ranges ? 0 : r->prompt_tokens;
    for (int i = 0; i < r->n_kept_ranges; i++)
        n += r->kept[i].last - r->kept[i].first + 1;
    return n;
}

// Changes a range, and the number of tokens to match it.
static void change_range(struct drawn *d, struct random_source *random)
{
    struct sequence_request *r = &d->request;
    struct token_range *range = &d->kept[random_below(random, RANGES)];
    *(random_below(random, 2) ? &range->first : &range->last) += random_below(random, 5) - 2;
    r->n_tokens = r->n_generated + kept_count(r);
}

static void change_one(struct drawn *d, struct random_source *random, int vocab)
{
    struct sequence_request *r = &d->request;
    int step = random_below(random, 2) ? 1 : -1;
    int32_t wrong = random_below(random, 2) ? -1 : vocab;
    switch (random_below(random, 10)) {
    case 0: r->n_tokens += step; break;
    case 1: r->n_tokens += step; // fall through
    case 2: r->n_generated += step; break;
    case 3: r->prompt_tokens += step; break;
    case 4: r->sampling.max_tokens += step; break;
    case 5: d->tokens[random_below(random, TOKENS)] = wrong; break;
    case 6: d->penalty_ids[random_below(random, 2)] = wrong; break;
    case 7: r->n_tokens = r->n_generated, r->n_kept_ranges = r->prompt_tokens = 0; break;
    default: change_range(d, random); break;
    }
}

static bool ids_are_valid(const int32_t *ids, int n, int vocab)
{
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab) return false;
    return true;
}

// Checks that each range is inside the prompt and shares no token with an earlier range.
static bool ranges_are_valid(const struct sequence_request *r)
{
    for (int i = 0; i < r->n_kept_ranges; i++) {
        if (r->kept[i].first < 0 || r->kept[i].last >= r->prompt_tokens || r->kept[i].first > r->kept[i].last)
            return false;
        for (int k = 0; k < i; k++)
            if (r->kept[i].first <= r->kept[k].last && r->kept[k].first <= r->kept[i].last) return false;
    }
    return true;
}

static bool logprobs_are_valid(const struct sequence_request *r)
{
    int n_kept = r->n_tokens - r->n_generated;
    return r->sampling.prompt_logprobs < 0 ||
           (n_kept == r->prompt_tokens && r->logprobs_from > 0 && r->logprobs_from <= n_kept);
}

static bool is_valid(const struct sequence_request *r, const struct scheduler_limits *limits, int vocab)
{
    int n_prompt = r->n_tokens - r->n_generated, max_tokens = r->sampling.max_tokens;
    int output = r->sampling.no_output ? 0 : max_tokens;
    return r->n_generated >= 0 && n_prompt >= 1 && n_prompt == kept_count(r) && ranges_are_valid(r) &&
           max_tokens > r->n_generated && r->prompt_tokens + output <= limits->context_tokens &&
           n_prompt + max_tokens - 1 <= limits->kv_blocks * KV_BLOCK_TOKENS && logprobs_are_valid(r) &&
           ids_are_valid(r->tokens, r->n_tokens, vocab) && ids_are_valid(r->penalty_ids, r->n_penalty_ids, vocab);
}

// Checks a draft from output token `from` on: the tokens that the sequence already has must match it, and the rest is
// kept as its draft.
static const char *draft_check(struct sequence *q, struct random_source *random, int vocab)
{
    const struct model_config config = {.vocab_size = vocab, .eos_id = {7}, .n_eos = 1};
    int generated = q->n_tokens - q->n_kept, from = generated + 1 - random_below(random, 5),
        n = random_below(random, 6);
    int known = generated - from, expected = 0, left = q->sampling.max_tokens - generated - 1;
    int32_t draft[6];
    for (int i = 0; i < n; i++) {
        bool is_there = from + i >= 0 && i < known && random_below(random, 8);
        draft[i] = is_there ? q->tokens[q->n_kept + from + i] : random_below(random, 8) ? 3 + i : 7;
    }
    if (random_below(random, 8) == 0 && n) draft[n - 1] = vocab;
    bool fits = from >= 0 && known >= 0 && ids_are_valid(draft, n, vocab);
    for (int i = 0; i < known && i < n && fits; i++)
        fits = draft[i] == q->tokens[q->n_kept + from + i];
    while (fits && known + expected < n && expected < left && draft[known + expected] != 7)
        expected++;
    enum status status = sequence_set_draft(q, from, draft, n, &config);
    if ((status == STATUS_OK) != ids_are_valid(draft, n, vocab))
        return "a wrong draft was accepted, or a right one refused";
    if (q->n_draft != expected) return "a sequence has not the draft that it was given";
    bool same = !expected || !memcmp(q->tokens + q->n_tokens, draft + known, (size_t)expected * sizeof *draft);
    return same ? NULL : "a sequence has wrong draft tokens";
}

const char *oracle_intake(struct random_source *random, const struct scheduler_limits *limits, int vocab_size)
{
    static const struct rope_config rope; // no limits of lengths
    struct sequence_limits sequence_limits = {vocab_size, limits->context_tokens, limits->kv_blocks, &rope};
    for (int i = 0; i < REQUESTS; i++) {
        struct drawn d;
        struct sequence *q = NULL;
        draw(&d, random, limits, vocab_size);
        change_one(&d, random, vocab_size);
        enum status status = sequence_create(&d.request, &sequence_limits, &q);
        if ((status == STATUS_OK) != is_valid(&d.request, limits, vocab_size))
            return q ? "an invalid request was accepted" : "a valid request was refused";
        const char *problem = q ? draft_check(q, random, vocab_size) : NULL;
        if (q) sequence_free(q);
        if (problem) return problem;
    }
    return NULL;
}
