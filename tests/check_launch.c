// SPDX-License-Identifier: Apache-2.0
// How a process finds out which launcher started it, with the variables that each launcher sets.
#include <stdlib.h>
#include <string.h>

#include "engine/launch.h"
#include "tests/suite.h"

static const char *const *environment; // "NAME=value" ..., NULL

static const char *get(const char *name)
{
    const size_t length = strlen(name);
    for (const char *const *e = environment; *e; e++)
        if (strncmp(*e, name, length) == 0 && (*e)[length] == '=') return *e + length + 1;
    return NULL;
}

static void check(const char *const variables[], enum launcher launcher, int rank, int ranks, int host_ranks)
{
    environment = variables;
    const struct launch launch = launch_read(get);
    ck_assert_int_eq(launch.launcher, launcher);
    ck_assert_int_eq(launch.rank, rank);
    ck_assert_int_eq(launch.ranks, ranks);
    ck_assert_int_eq(launch.host_ranks, host_ranks);
}

#define VARIABLES(...)                                                                                                 \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

START_TEST(a_process_without_launcher_is_alone)
{
    check(VARIABLES("HOME=/root"), LAUNCHER_NONE, 0, 1, 0);
}
END_TEST

START_TEST(mpirun_states_ranks_and_place)
{
    check(VARIABLES("OMPI_COMM_WORLD_SIZE=16", "OMPI_COMM_WORLD_RANK=9", "OMPI_COMM_WORLD_LOCAL_SIZE=8"),
          LAUNCHER_MPIRUN, 9, 16, 8);
    check(VARIABLES("OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0"), LAUNCHER_MPIRUN, 0, 1, 0);
}
END_TEST

START_TEST(srun_with_pmix_starts_a_group)
{
    check(VARIABLES("SLURM_STEP_NUM_TASKS=16", "SLURM_PROCID=9", "SLURM_LOCALID=1", "PMIX_RANK=9"), LAUNCHER_SRUN, 9,
          16, 0);
    check(VARIABLES("SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0", "PMI_RANK=0", "PMI_FD=12"), LAUNCHER_SRUN, 0, 2, 0);
}
END_TEST

START_TEST(srun_without_mpi_starts_separate_tasks)
{
    check(VARIABLES("SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=3"), LAUNCHER_SRUN_SEPARATELY, 3, 8, 0);
}
END_TEST

// The script of a Slurm job, an interactive step, and a step of one task.
START_TEST(one_task_of_a_slurm_job_is_alone)
{
    check(VARIABLES("SLURM_JOB_ID=77", "SLURM_NTASKS=8", "SLURM_PROCID=0", "SLURM_LOCALID=0"), LAUNCHER_NONE, 0, 1, 0);
    check(VARIABLES("SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0", "PMIX_RANK=0"), LAUNCHER_NONE, 0, 1, 0);
}
END_TEST

// mpirun in a Slurm job starts its daemons by srun, one task per node.
START_TEST(mpirun_in_a_slurm_job_counts)
{
    check(VARIABLES("SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1", "OMPI_COMM_WORLD_SIZE=16", "OMPI_COMM_WORLD_RANK=12",
                    "OMPI_COMM_WORLD_LOCAL_SIZE=8"),
          LAUNCHER_MPIRUN, 12, 16, 8);
}
END_TEST

SUITE("launch")
{
    TEST(a_process_without_launcher_is_alone);
    TEST(mpirun_states_ranks_and_place);
    TEST(srun_with_pmix_starts_a_group);
    TEST(srun_without_mpi_starts_separate_tasks);
    TEST(one_task_of_a_slurm_job_is_alone);
    TEST(mpirun_in_a_slurm_job_counts);
}
