// SPDX-License-Identifier: Apache-2.0
#include "sim/expect.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "sim/answers.h"
#include "sim/expect_score.h"
#include "sim/grammar.h"
#include "sim/load.h"
#include "sim/slow_spans.h"
#include "speculator/select.h"
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
                                   .rule = answer_rule_of(options, false),
                                   .samples = options->samples};
    for (int i = 0; i < r->spec.n_tokens; i++)
        expect->seen[r->spec.tokens[i]] = true;
    for (int k = 0; k < r->n_kept_ranges; k++)
        for (int32_t i = r->kept[k].first; i <= r->kept[k].last; i++)
            expect->entry = answer_entry(expect->entry, r->spec.tokens[i], i);
}

// Returns the most likely allowed token. Only two logits differ from the rest.
static int32_t token_of_grammar(int64_t modulus, const struct expectation *expect, int32_t first, int32_t second)
{
    int32_t token = 0;
    if (sim_grammar_allows((int)modulus, expect->index, first)) return first;
    if (sim_grammar_allows((int)modulus, expect->index, second)) return second;
    while (!sim_grammar_allows((int)modulus, expect->index, token))
        token++;
    return token;
}

int32_t expect_next(const struct expectation *expect, bool *stops_p)
{
    const struct scenario_request *plan = expect->plan;
    bool sampled = expect->samples && plan->temperature > 0;
    double uniform = sampled ? sampler_uniform((uint64_t)plan->seed, (uint64_t)expect->index) : -1;
    int32_t token = answer_token(expect->entry, uniform, &expect->rule);
    int32_t second = answer_second_token(expect->entry, token, expect->rule.vocab);
    bool is_penalised = plan->reading == 2 && expect->seen[token] && !expect->seen[second];
    bool is_masked = token == TOKEN_EOS && !plan->ignore_eos && expect->index < plan->min_tokens;
    if (is_penalised || is_masked) token = second;
    if (plan->grammar) token = token_of_grammar(plan->grammar % 100, expect, token, second);
    bool is_complete = plan->grammar && expect->index >= plan->grammar / 100;
    *stops_p = is_complete || (token == TOKEN_EOS && !plan->ignore_eos);
    return token;
}

void expect_advance(struct expectation *expect, int32_t token)
{
    expect->entry = answer_entry(expect->entry, token, expect->n_prompt + expect->index);
    expect->seen[token] = true;
    expect->index++;
}

// --- kept tokens

// Fills kept[n] with the slow reference selection. Uses the speculator's own selection for chunks: only spans have a
// slow reference.
static void select_expected(const struct request *r, const float *importance, int n, struct select_policy *policy,
                            bool *kept)
{
    if (policy->chunk_tokens == CHUNK_TOKENS_AUTO) {
        uint8_t *ends = mem_alloc((size_t)n);
        for (int i = 0; i < n; i++)
            ends[i] = answer_ends_sentence(r->spec.tokens[i]) || i == n - 1;
        policy->ends = ends;
        slow_select_spans(importance, n, policy, kept);
        free(ends);
        return;
    }
    struct token_range *ranges;
    int n_ranges = select_kept(importance, n, policy, &ranges);
    for (int k = 0; k < n_ranges; k++)
        for (int32_t i = ranges[k].first; i <= ranges[k].last; i++)
            kept[i] = true;
    free(ranges);
}

// The rows of a prompt in order.
struct rows {
    const struct scenario *scenario;
    const struct request *r;
    struct token_range *tokens; // [n] each with its own range
    bool *has_row;
    int n;
};

static void rows_add(struct rows *rows, int32_t token)
{
    if (rows->has_row[token]) return;
    rows->has_row[token] = true;
    rows->tokens[rows->n++] = (struct token_range){token, token};
}

// Adds the kept tokens among the first n tokens.
static void rows_add_selection(struct rows *rows, int n, int budget_tokens, bool pins_rows)
{
    const struct request_spec *spec = &rows->r->spec;
    struct select_policy policy = select_policy_of(&spec->prefill);
    policy.keep_rate = rows->r->keep_rate; // see expect_rate()
    policy.keep_first = spec->tokens[0] == TOKEN_BOS;
    policy.tail_tokens = prefill_tail_tokens((int)rows->scenario->options.tail_tokens, n);
    policy.budget_tokens = budget_tokens;
    struct token_range *pinned = mem_alloc_array((size_t)(rows->n + spec->n_pinned), sizeof *pinned);
    for (int i = 0; i < spec->n_pinned; i++)
        if (spec->pinned[i].last < n) pinned[policy.n_pinned++] = spec->pinned[i];
    for (int i = 0; pins_rows && i < rows->n; i++)
        pinned[policy.n_pinned++] = rows->tokens[i];
    policy.pinned = pinned;
    float *importance = mem_alloc_array((size_t)n, sizeof *importance);
    bool *kept = mem_alloc_array((size_t)n, sizeof *kept);
    struct request prompt = *rows->r;
    struct evidence evidence;
    prompt.spec.n_tokens = n;
    expect_score(rows->scenario, &prompt, importance, &evidence);
    select_expected(rows->r, importance, n, &policy, kept);
    for (int i = 0; i < n; i++)
        if (kept[i]) rows_add(rows, i);
    free(kept);
    free(importance);
    free(pinned);
}

// Adds the rows of a conversation by definition: each turn has the rows of the preceding turn, the preceding answer,
// and the tokens that this turn selects.
static void rows_add_turns(struct rows *rows)
{
    const struct request_spec *spec = &rows->r->spec;
    bool pins_rows = prefill_chunk_tokens(&spec->prefill) == CHUNK_TOKENS_AUTO;
    bool shortens = spec->prefill.mode == PREFILL_AUTO;
    // The turn after a shared beginning has a larger budget: one third of the tokens of the beginning is added.
    int more = spec->turns[0].answer_end == spec->turns[0].end ? spec->turns[0].end / 3 : 0;
    for (int t = 0; t <= spec->n_turns; t++) {
        const struct prompt_turn *turn = t < spec->n_turns ? &spec->turns[t] : NULL;
        int n = turn ? turn->end : spec->n_tokens, answer_end = turn ? turn->answer_end : n;
        int budget = t ? n - spec->turns[t - 1].answer_end + (t == 1 ? more : 0) : 0;
        bool is_short = shortens && turn && n < rows->scenario->options.min_tokens;
        if (!is_short) rows_add_selection(rows, n, pins_rows ? budget : 0, t && pins_rows);
        for (int i = 0; i < answer_end; i++)
            if (is_short || i >= n) rows_add(rows, i);
    }
}

static bool rows_equal(const struct rows *rows, const struct request *r)
{
    int n = 0;
    for (int k = 0; k < r->n_kept_ranges; k++)
        for (int32_t i = r->kept[k].first; i <= r->kept[k].last; i++, n++)
            if (n >= rows->n || rows->tokens[n].first != i) return false;
    return n == rows->n;
}

bool expect_conversation(const struct scenario *scenario, const struct request *r)
{
    return r->spec.n_turns && scenario->options.selection_kib && !r->spec.prefill.paper_exact && !r->spec.score_only &&
           !r->spec.want_importance;
}

bool expect_kept(const struct scenario *scenario, const struct action *action, const struct request *r, bool talks)
{
    int n = r->spec.n_tokens;
    if (action->id % 4 || !expect_whole_look_ahead(scenario, r)) return true;
    if (talks && r->spec.prefill.quality > 0) return true; // the keep rates of its turns are not known
    struct rows rows = {scenario, r, mem_alloc_array((size_t)n, sizeof *rows.tokens),
                        mem_alloc_array((size_t)n, sizeof *rows.has_row), 0};
    if (talks)
        rows_add_turns(&rows);
    else
        rows_add_selection(&rows, n, 0, false);
    bool equal = rows_equal(&rows, r);
    free(rows.tokens);
    free(rows.has_row);
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
    if (plan->reading == 3) passes = (double)plan->tokens; // one row per pass, when other requests use the logits
    // a speculator also scores each turn of a conversation
    double scores = node->role || !plan->turn ? 1 : 1 + (double)(plan->tokens / plan->turn);
    return scores * (pass_us(node, (double)plan->tokens, 0) + passes * (double)node->fixed_us +
                     steps * pass_us(node, 1, (double)plan->tokens + steps));
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
