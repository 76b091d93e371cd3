// SPDX-License-Identifier: Apache-2.0
#include "engine/launch.h"

#include <stdbool.h>
#include <stdlib.h>

static int read_int(const char *(*get)(const char *name), const char *name, int otherwise)
{
    const char *text = get(name);
    return text && *text ? atoi(text) : otherwise;
}

// Considers only steps with several tasks, because a step with one task may be just the shell of a Slurm job.
// SLURM_NTASKS counts the tasks of the job, not of the step.
static struct launch launch_read_srun(const char *(*get)(const char *name), int tasks)
{
    const bool connected = get("PMIX_RANK") || get("PMI_RANK");
    return (struct launch){.launcher = connected ? LAUNCHER_SRUN : LAUNCHER_SRUN_SEPARATELY,
                           .rank = read_int(get, "SLURM_PROCID", 0),
                           .ranks = tasks};
}

struct launch launch_read(const char *(*get)(const char *name))
{
    const int ranks = read_int(get, "OMPI_COMM_WORLD_SIZE", 0), tasks = read_int(get, "SLURM_STEP_NUM_TASKS", 1);
    if (ranks > 0) // checked first, because mpirun may start its ranks with srun
        return (struct launch){.launcher = LAUNCHER_MPIRUN,
                               .rank = read_int(get, "OMPI_COMM_WORLD_RANK", 0),
                               .ranks = ranks,
                               .host_ranks = read_int(get, "OMPI_COMM_WORLD_LOCAL_SIZE", 0)};
    if (tasks > 1) return launch_read_srun(get, tasks);
    return (struct launch){.launcher = LAUNCHER_NONE, .ranks = 1};
}
