// SPDX-License-Identifier: Apache-2.0
#include "sim/expect_score.h"

#include <stdlib.h>

#include "engine/block_manager.h"
#include "lib/base/mem.h"
#include "sim/answers.h"
#include "sim/calibrations.h"

static int64_t node_holds(const struct scenario_node *node) // KV entries of one sequence
{
    int64_t entries = node->kv_blocks * KV_BLOCK_TOKENS;
    return node->context < entries ? node->context : entries;
}

bool expect_whole_look_ahead(const struct scenario *scenario, const struct request *r)
{
    int64_t entries = r->spec.n_tokens + r->spec.prefill.look_ahead - 1;
    for (int i = 0; i < scenario->n_nodes; i++)
        if (!scenario->nodes[i].role && entries > node_holds(&scenario->nodes[i])) return false;
    return true;
}

// --- the score

static int tail_tokens_of(const struct scenario *scenario, const struct request *r)
{
    return prefill_tail_tokens((int)scenario->options.tail_tokens, r->spec.n_tokens);
}

static void begin_evidence(const struct scenario *scenario, const struct request *r, struct evidence_sums *sums)
{
    int skipped = r->spec.tokens[0] == TOKEN_BOS ? r->spec.prefill.pool_window : 0;
    evidence_begin(sums, r->spec.n_tokens, skipped, tail_tokens_of(scenario, r));
}

void expect_score(const struct scenario *scenario, const struct request *r, float *importance,
                  struct evidence *evidence)
{
    const struct answer_rule rule = answer_rule_of(&scenario->options, true);
    const int n = r->spec.n_tokens;
    struct evidence_sums sums;
    float *step = mem_alloc_array((size_t)n, sizeof *step);
    uint64_t query = ANSWER_START;
    int steps = 0;
    int32_t next = 0;
    begin_evidence(scenario, r, &sums);
    for (int i = 0; i < n; i++) {
        query = answer_entry(query, r->spec.tokens[i], i);
        importance[i] = 0;
    }
    while (next != TOKEN_EOS && steps < r->spec.prefill.look_ahead) {
        if (steps) query = answer_entry(query, next, n + steps - 1);
        for (int i = 0; i < n; i++)
            step[i] = answer_importance(query, r->spec.tokens[i], i);
        evidence_add_step(&sums, importance, step);
        for (int i = 0; i < n; i++)
            importance[i] += step[i];
        if (++steps == r->spec.prefill.look_ahead) break; // the token after the last step is not used
        next = answer_token(query, -1, &rule);
        if (!scenario->options.samples) evidence_add_margin(&sums, ANSWER_LOGIT - ANSWER_SECOND_LOGIT);
    }
    for (int i = 0; i < n; i++)
        importance[i] /= (float)steps;
    evidence_finish(&sums, importance, n, next == TOKEN_EOS, evidence);
    free(step);
}

// --- the keep rate

// Returns true if the calibration covers the request. The router asks for the calibration's own tail window, even if a
// short prompt would have the same tail with another window.
static bool covers(const struct scenario *scenario, const struct request *r, const struct calibration *own)
{
    return own->tail_tokens == scenario->options.tail_tokens &&
           calibration_covers(own, &r->spec.prefill, r->spec.n_tokens, tail_tokens_of(scenario, r));
}

// Returns true if all tokens may have been kept because no calibration applied.
static bool may_be_uncalibrated(const struct scenario *scenario, const struct request *r)
{
    const struct calibration *first = NULL;
    for (int i = 0; i < scenario->n_nodes; i++) {
        const struct scenario_node *node = &scenario->nodes[i];
        if (node->role) continue;
        const struct calibration *own = sim_calibration(node->calibration);
        if (!first) first = own;
        if (!own || own != first || own->main.model != SIM_MAIN_FINGERPRINT) return true;
    }
    return !first || !covers(scenario, r, first);
}

static bool is_chosen_by(const struct scenario *scenario, const struct request *r, const struct evidence *evidence,
                         const struct calibration *own)
{
    if (!own || !covers(scenario, r, own)) return false;
    // The served main model was not known: a request that asks only for a score needs no worker group.
    if (own->main.model != SIM_MAIN_FINGERPRINT && !r->spec.score_only) return false;
    struct rate_choice choice = calibration_choose(own, evidence, r->spec.prefill.quality);
    if (choice.rate < r->spec.prefill.min_keep_rate) choice.rate = r->spec.prefill.min_keep_rate;
    return choice.rate == r->keep_rate && choice.reason == r->rate_reason;
}

bool expect_rate(const struct scenario *scenario, const struct request *r)
{
    if (!expect_whole_look_ahead(scenario, r)) return true;
    if (r->rate_reason == RATE_UNCALIBRATED) return r->keep_rate == 1 && may_be_uncalibrated(scenario, r);
    struct evidence evidence;
    float *importance = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *importance);
    expect_score(scenario, r, importance, &evidence);
    bool chosen = false;
    for (int i = 0; i < scenario->n_nodes && !chosen; i++)
        chosen = !scenario->nodes[i].role &&
                 is_chosen_by(scenario, r, &evidence, sim_calibration(scenario->nodes[i].calibration));
    free(importance);
    return chosen;
}
