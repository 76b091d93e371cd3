// SPDX-License-Identifier: Apache-2.0
#include "sim/expect.h"

#include <stdlib.h>

#include "base/mem.h"
#include "sim/answers.h"
#include "sim/expect_score.h"
#include "sim/load.h"
#include "speculator/select.h"
#include "tests/slow_spans.h"
#include "worker/sampler.h"

int32_t *expect_prompt(const struct scenario *scenario, const struct action *action)
{
    const struct scenario_request *plan = &action->request;
    int vocab = (int)scenario->options.vocab;
    if (scenario->load) return load_prompt(scenario->load, action, vocab);
    int32_t *tokens = mem_alloc_array((size_t)plan->tokens, sizeof *tokens);
    int64_t id = plan->same_as ? plan->same_as : action->id, own = id * 4 + 2 + id % 2, head = plan->head * 4;
    for (int i = 0; i < plan->tokens; i++) {
        bool in_tail = plan->tail && i >= plan->tail_from, in_head = plan->head && i < plan->head_tokens;
        tokens[i] = answer_prompt_token(in_tail ? plan->tail * 4 + 1 : in_head ? head : own, i, vocab);
    }
    return tokens;
}

// --- tokens

void expect_begin(struct expectation *expect, const struct action *action, const struct request *r,
                  const struct scenario_options *options)
{
    *expect = (struct expectation){.plan = &action->request,
                                   .entry = ANSWER_START,
                                   .n_prompt = r->spec.n_tokens,
                                   .vocab = (int)options->vocab,
                                   .samples = options->samples};
    for (int i = 0; i < r->spec.n_tokens; i++)
        expect->seen[r->spec.tokens[i]] = true;
    for (int k = 0; k < r->n_kept_ranges; k++)
        for (int32_t i = r->kept[k].first; i <= r->kept[k].last; i++)
            expect->entry = answer_entry(expect->entry, r->spec.tokens[i], i);
}

int32_t expect_next(const struct expectation *expect, bool *stops_p)
{
    const struct scenario_request *plan = expect->plan;
    bool sampled = expect->samples && plan->temperature > 0;
    double uniform = sampled ? sampler_uniform((uint64_t)plan->seed, (uint64_t)expect->index) : -1;
    int32_t token = answer_token(expect->entry, uniform, expect->vocab);
    int32_t second = answer_second_token(expect->entry, token, expect->vocab);
    bool is_penalised = plan->reading == 2 && expect->seen[token] && !expect->seen[second];
    bool is_masked = token == TOKEN_EOS && !plan->ignore_eos && expect->index < plan->min_tokens;
    if (is_penalised || is_masked) token = second;
    *stops_p = token == TOKEN_EOS && !plan->ignore_eos;
    return token;
}

void expect_advance(struct expectation *expect, int32_t token)
{
    expect->entry = answer_entry(expect->entry, token, expect->n_prompt + expect->index);
    expect->seen[token] = true;
    expect->index++;
}

// --- kept tokens

static bool ranges_equal(const struct token_range *a, int n_a, const struct token_range *b, int n_b)
{
    if (n_a != n_b) return false;
    for (int i = 0; i < n_a; i++)
        if (a[i].first != b[i].first || a[i].last != b[i].last) return false;
    return true;
}

static bool chunks_equal(const struct request *r, const float *importance, const struct select_policy *policy)
{
    struct token_range *kept;
    int n_kept = select_kept(importance, r->spec.n_tokens, policy, &kept);
    bool equal = ranges_equal(kept, n_kept, r->kept, r->n_kept_ranges);
    free(kept);
    return equal;
}

// Whether the request keeps the tokens of `kept` [n_tokens] and no others.
static bool map_equals(const struct request *r, const bool *kept)
{
    int next = 0;
    for (int k = 0; k < r->n_kept_ranges; k++) {
        for (; next < r->kept[k].first; next++)
            if (kept[next]) return false;
        for (; next <= r->kept[k].last; next++)
            if (!kept[next]) return false;
    }
    for (; next < r->spec.n_tokens; next++)
        if (kept[next]) return false;
    return true;
}

static bool spans_equal(const struct request *r, const float *importance, struct select_policy *policy)
{
    int n = r->spec.n_tokens;
    uint8_t *ends = mem_alloc((size_t)n);
    bool *kept = mem_alloc_array((size_t)n, sizeof *kept);
    for (int i = 0; i < n; i++)
        ends[i] = answer_ends_sentence(r->spec.tokens[i]) || i == n - 1;
    policy->ends = ends;
    slow_select_spans(importance, n, policy, kept);
    bool equal = map_equals(r, kept);
    free(kept);
    free(ends);
    return equal;
}

bool expect_kept(const struct scenario *scenario, const struct action *action, const struct request *r)
{
    int n = r->spec.n_tokens;
    if (action->id % 4 || !expect_whole_look_ahead(scenario, r)) return true;
    struct select_policy policy = select_policy_of(&r->spec.prefill);
    policy.keep_rate = r->keep_rate; // see expect_rate()
    policy.keep_first = r->spec.tokens[0] == TOKEN_BOS;
    policy.tail_tokens = prefill_tail_tokens((int)scenario->options.tail_tokens, n);
    policy.pinned = r->spec.pinned;
    policy.n_pinned = r->spec.n_pinned;
    float *importance = mem_alloc_array((size_t)n, sizeof *importance);
    struct evidence evidence;
    expect_score(scenario, r, importance, &evidence);
    bool equal = policy.chunk_tokens == CHUNK_TOKENS_AUTO ? spans_equal(r, importance, &policy)
                                                          : chunks_equal(r, importance, &policy);
    free(importance);
    return equal;
}

// --- time

static double pass_us(const struct scenario_node *node, double rows, double entries)
{
    double us = (double)node->fixed_us + rows * (double)node->row_ns / 1e3;
    us += (rows * entries + rows * (rows + 1) / 2) * (double)node->pair_ps / 1e6;
    return us * (1 + (double)node->noise_percent / 100) + (double)node->sample_us;
}

static double alone_us(const struct scenario_node *node, const struct scenario_request *plan)
{
    double passes = (double)(plan->tokens / node->budget + 1),
           steps = node->role ? (double)plan->max_tokens : (double)plan->look_ahead + 8;
    if (plan->reading == 3) passes = (double)plan->tokens; // a row a pass, beside others that use its logits
    return pass_us(node, (double)plan->tokens, 0) + passes * (double)node->fixed_us +
           steps * pass_us(node, 1, (double)plan->tokens + steps);
}

int64_t expect_wait_max_us(const struct scenario *scenario)
{
    const struct scenario_options *o = &scenario->options;
    double slowest[2] = {0, 0};
    int n_requests = 0;
    for (int i = 0; i < scenario->n_actions; i++)
        n_requests += scenario->actions[i].kind == ACTION_REQUEST;
    for (int k = 0; k < scenario->n_nodes; k++) {
        double sum = 0;
        for (int i = 0; i < scenario->n_actions; i++)
            if (scenario->actions[i].kind == ACTION_REQUEST)
                sum += alone_us(&scenario->nodes[k], &scenario->actions[i].request);
        int role = scenario->nodes[k].role != 0;
        if (sum > slowest[role]) slowest[role] = sum;
    }
    int64_t messages_us = (n_requests + 4) * (2 * (o->delay_us + o->jitter_us) + o->loop_us);
    return 2 * o->max_wait_ms * 1000 + 1000000 + messages_us + (int64_t)(4 * (slowest[0] + slowest[1]));
}
