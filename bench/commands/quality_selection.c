// SPDX-License-Identifier: Apache-2.0
// Selects the kept tokens of a prompt by the flags of `forepack bench prefill-quality`.
#include "bench/commands/quality.h"

int quality_tail_tokens(const struct quality *q, int n)
{
    return prefill_tail_tokens((int)q->flags->tail_tokens, n);
}

const char *quality_policy_name(enum quality_policy policy)
{
    static const char *const names[QUALITY_POLICIES] = {"importance", "oracle",     "bm25",  "perplexity",
                                                        "random",     "positional", "first", "last"};
    return names[policy];
}

struct prefill quality_prefill(const struct quality *q, int look_ahead, int chunk_tokens)
{
    struct prefill prefill;
    prefill_defaults(&prefill);
    prefill.look_ahead = look_ahead;
    prefill.chunk_tokens = chunk_tokens;
    prefill.pool_window = (int)q->flags->pool_window;
    prefill.paper_exact = q->flags->paper_exact;
    return prefill;
}

double quality_choose_rate(const struct quality *q, const struct model_pair_prompt *prompt,
                           const struct prefill *prefill, double quality)
{
    if (!q->calibration || !calibration_covers(q->calibration, prefill, prompt->n, prompt->tail_tokens)) return 1;
    return calibration_choose(q->calibration, &prompt->evidence, quality).rate;
}

int quality_select(const struct quality *q, const struct model_pair_prompt *prompt, int chunk_tokens, double keep_rate,
                   struct token_range **kept_p)
{
    const struct prefill prefill = quality_prefill(q, q->look_aheads.count[0], chunk_tokens);
    return model_pair_select(q->pair, prompt, &prefill, keep_rate, kept_p);
}

int quality_kept_tokens(const struct token_range *kept, int n_kept)
{
    int n = 0;
    for (int r = 0; r < n_kept; r++)
        n += kept[r].last - kept[r].first + 1;
    return n;
}
