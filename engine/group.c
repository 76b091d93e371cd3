// SPDX-License-Identifier: Apache-2.0
// See group.h.
#include "engine/group.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/log.h"
#include "engine/group_mpi.h"

static struct group_host host = {.ranks = 1};

static int environment_int(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

int group_rank_hint(void)
{
    return environment_int("OMPI_COMM_WORLD_RANK", 0);
}

int group_threads(int requested)
{
    if (requested > 0) return requested;
    int ranks_here = host.sharers ? host.sharers : environment_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    int share = cores_count() / (ranks_here > 0 ? ranks_here : 1);
    return share > 0 ? share : 1;
}

void group_place(int *host_rank_p, int *host_ranks_p)
{
    *host_rank_p = host.rank;
    *host_ranks_p = host.ranks;
}

// Settings of Open MPI, unless the environment already has them.
static void set_mpi_defaults(void)
{
    // Copying through shared memory twice is 2-3 times faster than one copy by the kernel up to 256 KB, our sizes, and
    // the kernel's copy needs ptrace rights that containers withhold.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that spin on a shared core cost each other whole time slices; with cores to spare yielding only adds
    // jitter.
    bool crowded = environment_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1) >= cores_count();
    setenv("OMPI_MCA_mpi_yield_when_idle", crowded ? "1" : "0", 0);
}

enum status group_open(int *argc, char ***argv, struct comm **comm_p)
{
    int n_ranks = environment_int("OMPI_COMM_WORLD_SIZE", 0);
    if (n_ranks < 1) return comm_open_self(comm_p);
    set_mpi_defaults();
    return group_mpi_open(n_ranks, argc, argv, comm_p, &host);
}

void group_set_allreduce_bf16(struct comm *comm)
{
    if (!group_mpi_set_allreduce_bf16(comm) && comm->rank == 0)
        log_event(LOG_INFO, "allreduce_dtype_ignored", LOG_FIELD("allreduce_dtype", "bf16"),
                  LOG_FIELD("reason", "all ranks run on one host and share memory"));
}

void group_close(struct comm *comm)
{
    comm->ops->close(comm);
    group_mpi_finalize();
}

void group_abort(struct comm *comm, int exit_code)
{
    if (comm->size > 1) group_mpi_abort(exit_code);
    _exit(exit_code);
}
