// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_pace.h"

#include <math.h>

#define OVER_TARGET_MAX 1.25 // factor; 1.15 was the largest in 6,000 scenarios
#define DECODES_MORE    1.05 // prompts always get this share (pace.h)
enum { PASSES_MIN = 100 };

// Returns the time of the first n_seqs sequences of the pass. Decoding sequences come first.
static double time_of(const struct engine *engine, const struct ragged_batch *batch, int n_seqs)
{
    double pairs = 0;
    for (int i = 0; i < n_seqs; i++) {
        double rows = batch->row_start[i + 1] - batch->row_start[i];
        pairs += rows * batch->kv_len[i] + rows * (rows + 1) / 2;
    }
    return sim_engine_pass_us(engine, batch->row_start[n_seqs], pairs);
}

const char *pace_watch_step(struct pace_watch *watch, const struct scheduler *s, const struct engine *engine)
{
    const struct ragged_batch *batch = &s->pass.builder.batch;
    int decodes = s->pass.budget.rows.decodes;
    if (s->pace.target_us == PACE_UNLIMITED || !decodes || batch->n_rows == decodes) return NULL;
    // The target follows the last measured time of decode rows, which may have had longer contexts.
    double now_us = time_of(engine, batch, decodes), decode_us = fmax(now_us, s->pace.decode_us);
    double target_us = s->pace.target_us == PACE_TWICE ? 2 * decode_us : (double)s->pace.target_us;
    watch->passes++;
    watch->us += time_of(engine, batch, batch->n_seqs);
    watch->target_us += fmax(DECODES_MORE * decode_us, target_us);
    bool is_over = watch->passes >= PASSES_MIN && watch->us > OVER_TARGET_MAX * watch->target_us;
    return is_over ? "passes with prompt rows take longer than the target of pacing on average" : NULL;
}
