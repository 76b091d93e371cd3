// SPDX-License-Identifier: Apache-2.0
// Joining and leaving the MPI job, and how a lost group ends. The environment is read here, once, at start.
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/comm_mpi.h"
#include "engine/comm_shm.h"
#include "engine/engine.h"

static int environment_int(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

// Ranks of this host that share this one's cores, itself included; 0 until they have met.
static int sharers;

// This rank among those of its host.
static int host_rank, host_ranks = 1;

// Ranks that were not given cores of their own (they all have the same mask) divide them: else their compute threads,
// which are pinned where they have all of a mask to themselves, would meet on the same ones. Threads that exist
// already, MPI's, keep the whole mask.
static void take_share(void)
{
    MPI_Comm host;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) != MPI_SUCCESS) return;
    int size, rank, index = 0;
    MPI_Comm_size(host, &size);
    MPI_Comm_rank(host, &rank);
    host_rank = rank;
    host_ranks = size;
    cpu_set_t cores, mine, *all = mem_alloc_array((size_t)size, sizeof *all);
    cores_usable(&cores);
    int error = MPI_Allgather(&cores, sizeof cores, MPI_BYTE, all, sizeof cores, MPI_BYTE, host);
    MPI_Comm_free(&host);
    for (int i = 0; error == MPI_SUCCESS && i < size; i++)
        if (CPU_EQUAL(&all[i], &cores)) {
            if (i < rank) index++;
            sharers++;
        }
    free(all);
    if (sharers > 1 && cores_share(&cores, index, sharers, &mine) && sched_setaffinity(0, sizeof mine, &mine) == 0)
        sharers = 1;
}

int group_rank_hint(void)
{
    return environment_int("OMPI_COMM_WORLD_RANK", 0);
}

int group_threads(int asked)
{
    if (asked > 0) return asked;
    int ranks_here = sharers ? sharers : environment_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    int share = cores_count() / (ranks_here > 0 ? ranks_here : 1);
    return share > 0 ? share : 1;
}

void group_place(int *host_rank_p, int *host_ranks_p)
{
    *host_rank_p = host_rank;
    *host_ranks_p = host_ranks;
}

// Shared memory where all ranks are on one host, MPI's messages otherwise; MPI also brings the former about.
static enum status choose_comm(struct comm **comm_p)
{
    struct comm *mpi, *shm;
    enum status status = comm_open_mpi(&mpi);
    if (status != STATUS_OK) return status;
    *comm_p = mpi;
    if (mpi->size > 1 && comm_mpi_on_one_host(mpi)) {
        status = comm_open_shm(mpi, &shm);
        if (status == STATUS_OK) {
            mpi->ops->close(mpi);
            *comm_p = shm;
        } else if (status_message()[0]) {
            log_warn("group_open: %s; using MPI's messages instead", status_message());
        }
    }
    const struct comm *c = *comm_p;
    if (c->rank == 0) log_info("group_open ranks=%d collectives=%s", c->size, c == mpi ? "mpi" : "shared_memory");
    return STATUS_OK;
}

enum status group_open(int *argc, char ***argv, struct comm **comm_p)
{
    if (!getenv("OMPI_COMM_WORLD_SIZE")) return comm_open_self(comm_p);
    // Copying through shared memory twice beats one copy by the kernel for our sizes (2-3 times up to 256 KB), and
    // the latter wants ptrace rights that containers withhold. Whoever starts us may say otherwise.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that spin on a shared core cost each other whole time slices; with cores to spare yielding only adds
    // jitter.
    bool crowded = environment_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1) >= cores_count();
    setenv("OMPI_MCA_mpi_yield_when_idle", crowded ? "1" : "0", 0);

    int provided;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return status_fail(STATUS_INTERNAL, "MPI_Init_thread failed");
    }
    if (provided < MPI_THREAD_FUNNELED) {
        MPI_Finalize();
        return status_fail(STATUS_UNSUPPORTED, "this MPI does not allow threads (MPI_THREAD_FUNNELED)");
    }
    take_share();
    return choose_comm(comm_p);
}

void group_set_allreduce_bf16(struct comm *comm)
{
    bool used = comm_mpi_set_allreduce_bf16(comm);
    if (!used && comm->rank == 0) log_info("allreduce_dtype bf16 ignored, the ranks share one host's memory");
}

static bool mpi_runs(void)
{
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    return started && !finished;
}

void group_close(struct comm *comm)
{
    comm->ops->close(comm);
    if (mpi_runs()) MPI_Finalize();
}

void group_abort(struct comm *comm, int exit_code)
{
    if (comm->size > 1 && mpi_runs()) MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}
