// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cpu_limits.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

// Adds a cause to the list of causes.
static void cause_add(struct placement *p, bool holds, const char *cause)
{
    const size_t used = strlen(p->decided_by);
    if (holds) snprintf(p->decided_by + used, sizeof p->decided_by - used, "%s%s", used ? ", " : "", cause);
}

static void causes_describe(struct placement *p, const struct cores_choice *choice)
{
    char limits[CPU_LIMITS_TEXT];
    cpu_limits_describe(limits);
    cause_add(p, *limits, limits);
    cause_add(p, !p->core, "more threads than cores");
    cause_add(p, choice->one_thread_per_core, "siblings");
    cause_add(p, choice->one_node, "NUMA node");
    cause_add(p, choice->avoided || choice->shared, "other pools");
    cause_add(p, !*p->decided_by, "all cores");
}

void placement_make(int threads, struct placement *p)
{
    cpu_set_t usable, used;
    struct cores_choice choice = {0};
    *p = (struct placement){.spins = cpu_limits_quota() <= 0};
    cores_usable(&usable);
    used = usable;
    if (threads <= CPU_COUNT(&usable)) {
        p->core = mem_alloc_array((size_t)threads, sizeof *p->core);
        p->claims = core_claims_take(&usable, threads, p->core, &choice);
        CPU_ZERO(&used);
        for (int t = 0; t < threads; t++)
            CPU_SET(p->core[t], &used);
    }
    cores_format(&used, p->cores);
    causes_describe(p, &choice);
    log_event(LOG_INFO, "cores_placed", LOG_FIELD("threads", threads), LOG_FIELD("cores", (const char *)p->cores),
              LOG_FIELD("first", p->core ? p->core[0] : -1), LOG_FIELD("shared", (bool)(choice.shared || !p->core)),
              LOG_FIELD("decided_by", (const char *)p->decided_by));
}

void placement_release(struct placement *p)
{
    core_claims_release(p->claims);
    free(p->core);
}
