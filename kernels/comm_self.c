// SPDX-License-Identifier: Apache-2.0
// Comm of a group of one rank: collectives have nothing to do.
#include "kernels/comm.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static enum status self_reduce(struct comm *c, float *data, size_t count)
{
    return STATUS_OK;
}

static enum status self_gather(struct comm *c, const float *data, size_t count, float *out)
{
    if (count) memmove(out, data, count * sizeof *out);
    return STATUS_OK;
}

static enum status self_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    return STATUS_OK;
}

static void self_close(struct comm *c)
{
    free(c);
}

static const struct comm_ops self_ops = {.all_reduce_sum = self_reduce,
                                         .all_reduce_max = self_reduce,
                                         .gather = self_gather,
                                         .broadcast = self_broadcast,
                                         .close = self_close};

enum status comm_open_self(struct comm **comm_p)
{
    struct comm *c = mem_alloc(sizeof *c);
    *c = (struct comm){.rank = 0, .size = 1, .ops = &self_ops};
    *comm_p = c;
    return STATUS_OK;
}
