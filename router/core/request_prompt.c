// SPDX-License-Identifier: Apache-2.0
#include "router/core/request_prompt.h"

#include <stdlib.h>

void core_request_set_prefix(const struct core *c, struct request *r, const struct token_range *kept, int n_kept)
{
    if (r->spec.sampling.prompt_logprobs >= 0) return; // the worker group must compute every row, so none is shared
    free(r->sched.prefix);
    r->sched.n_prefix = prefix_chain_make(&c->view.options.hash_key, r->spec.prefix_salt, r->spec.tokens, kept, n_kept,
                                          &r->sched.prefix);
}

void core_request_set_frozen(const struct core *c, struct request *r)
{
    const struct conversation *conversation = r->conversation;
    struct frozen_rows *frozen = &r->sched.frozen;
    free(frozen->prefix);
    *frozen = (struct frozen_rows){.rows = conversation->tokens,
                                   .end = request_score_prompt(r).fresh,
                                   .further_scores = r->spec.n_turns - conversation->turn};
    for (int t = conversation->turn; t < r->spec.n_turns; t++)
        frozen->answers += r->spec.turns[t].answer_end - r->spec.turns[t].end;
    frozen->selected_of = r->spec.n_tokens - frozen->answers - frozen->rows;
    if (request_pins_rows(r)) { // adds up the budget of the next turn and the tokens of the turns after it
        const struct score_prompt prompt = request_score_prompt(r);
        frozen->selected_of = request_budget_tokens(r) + r->spec.n_tokens - prompt.n_tokens - frozen->answers;
    }
    frozen->n_prefix = prefix_chain_make(&c->view.options.hash_key, r->spec.prefix_salt, r->spec.tokens,
                                         conversation->rows, conversation->n_rows, &frozen->prefix);
}

void core_request_set_score_prompt(const struct core *c, struct request *r)
{
    if (!r->conversation) return;
    const struct score_prompt prompt = request_score_prompt(r);
    core_request_set_frozen(c, r);
    r->sched.score_tokens = prompt.n_tokens;
    r->sched.score_ranges = prompt.n_pinned + (request_pins_rows(r) ? r->conversation->n_rows : 0);
    core_request_set_prefix(c, r, &(struct token_range){0, prompt.n_tokens - 1}, 1);
}
