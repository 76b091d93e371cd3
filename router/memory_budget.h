// SPDX-License-Identifier: Apache-2.0
// Fits the router's memory budgets, which are options, into the memory limit of its cgroup (lib/base/memory_limit.h).
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

struct memory_budget {
    const char *option; // name without dashes
    int64_t *mib;       // value of the option
    int64_t least_mib;  // lowest value that is useful
    bool given;         // the operator chose the value: it is not changed
};

// Lowers budgets that were not given, all in the same proportion, until base_mib and the budgets fit limit_mib. Returns
// INVALID with the numbers if they cannot fit.
enum status memory_budgets_fit(int64_t limit_mib, int64_t base_mib, const struct memory_budget *budgets, int n);
