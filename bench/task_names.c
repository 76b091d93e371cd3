// SPDX-License-Identifier: Apache-2.0
// The names of the classes of documents: task_name() and task_parse() of tasks.h.
#include <string.h>

#include "bench/tasks.h"

static const char *const names[TASKS] = {
    [TASK_NEEDLE] = "needle", [TASK_FACTS] = "facts", [TASK_TWO_HOP] = "two_hop",
    [TASK_COUNT] = "count",   [TASK_COPY] = "copy",   [TASK_INSTRUCTION] = "instruction",
};

const char *task_name(enum task task)
{
    return names[task];
}

bool task_parse(const char *name, enum task *task_p)
{
    for (int t = 0; t < TASKS; t++)
        if (strcmp(names[t], name) == 0) {
            *task_p = (enum task)t;
            return true;
        }
    return false;
}
