// SPDX-License-Identifier: Apache-2.0
#include "engine/group.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/group_mpi.h"
#include "engine/launch.h"
#include "lib/base/clock.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/home.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/memory_limit.h"
#include "lib/base/monotonic_cond.h"

static int sharers; // number of ranks on the cores of this rank, itself included; 0: not known

static const char *environment(const char *name)
{
    return getenv(name);
}

static int launched_host_ranks(void)
{
    const int ranks = launch_read(environment).host_ranks;
    return ranks > 0 ? ranks : 1;
}

int group_rank_hint(void)
{
    return launch_read(environment).rank;
}

bool group_is_single(void)
{
    return launch_read(environment).launcher == LAUNCHER_NONE;
}

int group_threads(int requested)
{
    if (requested > 0) return requested;
    return cpu_limits_threads(sharers ? sharers : launched_host_ranks(), launched_host_ranks());
}

size_t group_memory_bytes(void)
{
    return memory_limit_bytes() / (size_t)launched_host_ranks();
}

// Sets defaults of Open MPI that the environment does not set.
static void set_mpi_defaults(void)
{
    home_ensure();
    // For messages of up to 256 KB, two copies through shared memory are 2-3 times faster than one copy by the kernel.
    // The kernel's copy also needs ptrace rights, which containers do not grant.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that spin on a shared core take whole time slices from each other, so they must yield. If the ranks leave a
    // core free, yielding would only add jitter.
    bool crowded = launched_host_ranks() >= cpu_limits_threads(1, 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", crowded ? "1" : "0", 0);
}

static enum status refuse_separate_tasks(const struct launch *launch)
{
    if (launch->rank != 0) return status_fail(STATUS_INVALID, "%s", ""); // rank 0 reports it
    return status_fail(STATUS_INVALID,
                       "srun started %d tasks that MPI does not connect: start a group of ranks with srun --mpi=pmix, "
                       "and separate nodes with one srun --ntasks=1 each",
                       launch->ranks);
}

// State of the thread that ends the process if the group does not form in time. It is needed because the first
// collective of MPI hangs instead of failing.
struct forming {
    pthread_mutex_t lock; // guards `done`
    pthread_cond_t changed;
    bool done;
    int limit_s, n_ranks;
};

static void *forming_thread(void *argument)
{
    struct forming *f = argument;
    // Other ranks wait longer, so that rank 0 reports the failure. mpirun then ends the other ranks.
    int64_t limit_us = ((int64_t)f->limit_s + (group_rank_hint() ? 5 : 0)) * 1000000;
    int64_t until_us = clock_now_us() + limit_us;
    pthread_mutex_lock(&f->lock);
    while (!f->done && monotonic_cond_wait(&f->changed, &f->lock, until_us))
        continue;
    bool done = f->done;
    pthread_mutex_unlock(&f->lock);
    if (done) return NULL;
    log_event(LOG_ERROR, "group_not_formed", LOG_FIELD("rank", group_rank_hint()), LOG_FIELD("ranks", f->n_ranks),
              LOG_FIELD("limit_s", f->limit_s),
              LOG_FIELD("reason",
                        "the ranks do not reach each other. If hosts have bridges with the same IP address (docker0), "
                        "they may try these first: name the network of the group with "
                        "mpirun --mca btl_tcp_if_include NET --mca oob_tcp_if_include NET, and open its ports"));
    log_flush();
    _exit(1);
}

static enum status open_in_time(struct forming *f, int *argc, char ***argv, struct comm **comm_p)
{
    pthread_t thread;
    pthread_mutex_init(&f->lock, NULL);
    monotonic_cond_init(&f->changed);
    bool watched = f->limit_s > 0 && pthread_create(&thread, NULL, forming_thread, f) == 0;
    enum status status = group_mpi_open(group_rank_hint(), f->n_ranks, argc, argv, comm_p, &sharers);
    pthread_mutex_lock(&f->lock);
    f->done = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (watched) pthread_join(thread, NULL);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    return status;
}

enum status group_open(int *argc, char ***argv, int limit_s, struct comm **comm_p)
{
    const struct launch launch = launch_read(environment);
    if (launch.launcher == LAUNCHER_NONE) return comm_open_self(comm_p);
    if (launch.launcher == LAUNCHER_SRUN_SEPARATELY) return refuse_separate_tasks(&launch);
    set_mpi_defaults();
    struct forming forming = {.limit_s = limit_s, .n_ranks = launch.ranks};
    return open_in_time(&forming, argc, argv, comm_p);
}

bool group_set_allreduce_bf16(struct comm *comm)
{
    return group_mpi_set_allreduce_bf16(comm);
}

void group_close(struct comm *comm)
{
    comm->ops->close(comm);
    group_mpi_finalize();
}

void group_abort(struct comm *comm, int exit_code)
{
    log_flush();
    if (comm->size > 1) group_mpi_abort(exit_code);
    _exit(exit_code);
}
