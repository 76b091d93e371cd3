// SPDX-License-Identifier: Apache-2.0
#include "router/memory_budget.h"

#include "lib/base/log.h"

static int64_t least_of(const struct memory_budget *b)
{
    return b->given || *b->mib < b->least_mib ? *b->mib : b->least_mib;
}

enum status memory_budgets_fit(int64_t limit_mib, int64_t base_mib, const struct memory_budget *budgets, int n)
{
    int64_t least = base_mib, spare = 0; // spare: the part of the budgets that may be given up
    for (int i = 0; i < n; i++) {
        least += least_of(&budgets[i]);
        spare += *budgets[i].mib - least_of(&budgets[i]);
    }
    if (least > limit_mib)
        return status_fail(STATUS_INVALID,
                           "the cgroup allows the router %lld MiB, but it needs %lld MiB: %lld MiB for itself and the "
                           "rest for budgets such as --max-message-mb and --max-answers-mb: raise the memory limit or "
                           "lower the budgets",
                           (long long)limit_mib, (long long)least, (long long)base_mib);
    const int64_t room = limit_mib - least;
    if (spare <= room) return STATUS_OK;
    for (int i = 0; i < n; i++) {
        const int64_t low = least_of(&budgets[i]), before = *budgets[i].mib;
        *budgets[i].mib = low + (int64_t)((double)(before - low) * (double)room / (double)spare);
        if (*budgets[i].mib != before)
            log_event(LOG_INFO, "budget_lowered", LOG_FIELD("option", budgets[i].option), LOG_FIELD("old", before),
                      LOG_FIELD("new", *budgets[i].mib), LOG_FIELD("limit_mib", limit_mib));
    }
    return STATUS_OK;
}
