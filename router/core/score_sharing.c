// SPDX-License-Identifier: Apache-2.0
#include "router/core/score_sharing.h"

#include <assert.h>

struct request *score_sharing_find(const struct core *c, const struct request *r)
{
    if (!r->score_with) return NULL;
    struct request *other = request_table_find(&c->table, r->score_with);
    if (other && other->sharing.scored) other = other->sharing.scored;
    return other && other->state == REQUEST_SCORING ? other : NULL;
}

void score_sharing_join(struct request *scored, struct request *r)
{
    struct request_sharing *in = &scored->sharing;
    assert(!in->scored && !r->sharing.scored && !r->sharing.first);
    r->sharing = (struct request_sharing){.scored = scored, .prev = in->last};
    *(in->last ? &in->last->sharing.next : &in->first) = r;
    in->last = r;
}

void score_sharing_leave(struct request *r)
{
    struct request *scored = r->sharing.scored, *prev = r->sharing.prev, *next = r->sharing.next;
    if (!scored) return;
    *(prev ? &prev->sharing.next : &scored->sharing.first) = next;
    *(next ? &next->sharing.prev : &scored->sharing.last) = prev;
    r->sharing = (struct request_sharing){.scored = NULL};
}

struct request *score_sharing_take(struct request *scored)
{
    struct request *first = scored->sharing.first;
    if (first) score_sharing_leave(first);
    return first;
}

struct request *score_sharing_hand_over(struct request *scored)
{
    struct request *next = score_sharing_take(scored);
    for (struct request *r; next && (r = score_sharing_take(scored));)
        score_sharing_join(next, r);
    return next;
}
