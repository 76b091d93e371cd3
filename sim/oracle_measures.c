// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_measures.h"

#include "sim/oracle_waiting.h"

static uint64_t sum_of(const uint64_t *counts, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

// Sums over all nodes that the router remembers.
struct node_sums {
    uint64_t first_tokens, later_tokens, scores, bins[NODE_ROLES];
};

static void check_nodes(struct world *w, const struct core *c, struct node_sums *sums)
{
    for (const struct node_measures *m = c->ledger.nodes.first; m; m = m->next) {
        HOLDS(histogram_count(&m->pass) == m->counts.passes && (uint64_t)m->pass.sum == m->counts.pass_us);
        HOLDS(histogram_count(&m->fill) == m->counts.bins && m->counts.pass_pairs >= m->counts.pass_rows);
        sums->first_tokens += histogram_count(&m->first_token);
        sums->later_tokens += histogram_count(&m->inter_token);
        sums->scores += histogram_count(&m->score);
        sums->bins[m->role] += m->counts.bins;
    }
}

static bool has_scores_only(const struct scenario *s)
{
    for (int i = 0; i < s->n_actions; i++)
        if (s->actions[i].request.score_only) return true;
    return false;
}

// Checks that the router's measures agree with each other. An answer without tokens has no time to first token.
void oracle_measures(struct world *w, const struct core *c)
{
    const struct core_measures *m = &c->ledger.measures;
    const struct core_totals *t = &c->ledger.totals;
    const struct bin_totals *bins = c->ledger.bins;
    struct node_sums sums = {0};
    check_nodes(w, c, &sums);
    uint64_t first_tokens = histogram_count(&m->queue), answers = histogram_count(&m->end_to_end);
    HOLDS(m->finished[FINISH_REASON_STOP] + m->finished[FINISH_REASON_LENGTH] == t->done);
    HOLDS(m->finished[FINISH_REASON_CANCELLED] == t->cancelled && m->finished[FINISH_REASON_ERROR] == t->failed);
    HOLDS(sum_of(m->errors, STATUS_COUNT) == t->failed && sum_of(m->refused, STATUS_COUNT) == t->refused);
    HOLDS(sum_of(m->replays, LOSS_COUNT) == t->replays);
    HOLDS(t->draft_accepted_tokens <= t->draft_tokens);
    HOLDS(histogram_count(&m->pack_wait) == first_tokens && histogram_count(&m->prefill) == first_tokens);
    HOLDS(has_scores_only(w->scenario) ? answers <= t->done : answers == t->done);
    HOLDS(histogram_count(&m->token) <= answers && histogram_count(&m->kept) == t->skipped[SKIP_NONE]);
    if (c->ledger.nodes.n_gone > NODES_GONE_MAX) return;
    HOLDS(sums.first_tokens == first_tokens && sums.first_tokens + sums.later_tokens == t->completion_tokens);
    HOLDS(sums.bins[NODE_WORKER] == bins[NODE_WORKER].bins && sums.bins[NODE_SPECULATOR] == bins[NODE_SPECULATOR].bins);
    HOLDS(sums.scores + t->scores_reused >= t->skipped[SKIP_NONE]);
}
