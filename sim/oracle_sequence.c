// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_sequence.h"

#include <math.h>

static const char *running_check(const struct scheduler *s, const struct sequence *q)
{
    int full = q->n_cached / KV_BLOCK_TOKENS;
    if (!q->started) return "a running sequence was not started";
    if (q->n_reused > q->n_kept) return "a sequence found more of its prompt in the cache than it has";
    if (q->n_published != (s->limits.prefix_cache ? full : 0)) return "the full blocks of a sequence are not published";
    if (q->chain != (full && q->n_published ? block_manager_chain(s->blocks, q->blocks[full - 1]) : 0))
        return "the chain of a sequence differs from its last published block";
    if (q->is_chunked && !q->n_cached) return "a part of a prompt counts as computed before its first row";
    if (q->matcher && q->n_matched != sequence_generated(q)) return "a matcher has not accepted all generated tokens";
    return q->host_pass > s->n_passes ? "a sequence waits for the host since a future pass" : NULL;
}

static const char *waiting_check(const struct sequence *q)
{
    bool is_new = !q->n_blocks && !q->n_cached && !q->n_published && !q->chain && !q->is_chunked;
    return is_new ? NULL : "a waiting sequence has kept state of its earlier run";
}

const char *oracle_sequences(const struct scheduler *s)
{
    const struct sequence_queue *queues[] = {&s->queue, &s->held};
    const char *problem = NULL;
    for (int i = 0; i < s->n_running && !problem; i++)
        problem = running_check(s, s->running[i]);
    for (int k = 0; k < 2; k++)
        for (const struct sequence *q = queues[k]->head; q && !problem; q = q->next)
            problem = waiting_check(q);
    return problem;
}

// Checks that earlier counts fade with each verified draft, at most once for each sequence.
const char *draft_watch_step(struct draft_watch *watch, const struct scheduler *s)
{
    const struct draft_pace *p = &s->draft_pace;
    double accepted = (double)(s->draft_accepted - watch->draft_accepted),
           fade = pow(0.97, s->pass.builder.batch.n_seqs);
    bool verified = s->drafted != watch->drafted,
         changed = p->accepted != watch->accepted || p->refused != watch->refused;
    bool in_bounds = p->accepted <= watch->accepted + accepted && p->accepted >= fade * (watch->accepted + accepted) &&
                     p->refused >= fade * watch->refused;
    bool is_right = !watch->accepted || (verified == changed && in_bounds);
    *watch = (struct draft_watch){p->accepted, p->refused, s->drafted, s->draft_accepted};
    return is_right ? NULL : "verified drafts do not count as often as they were accepted";
}
