// SPDX-License-Identifier: Apache-2.0
// Joins and leaves the MPI job. See group_mpi.h.
#include "engine/group_mpi.h"

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>

#include "engine/comm_mpi.h"
#include "lib/base/cores.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

// Divides the cores of a mask among the ranks of this host that share the mask, because the launcher has not assigned
// separate cores to them. Otherwise a rank's compute threads would not be pinned, or would be pinned to cores that
// other ranks use too (kernels/cpu/thread_pool.h). Threads that MPI has started keep the whole mask.
static void divide_cores(int *sharers_p)
{
    MPI_Comm here;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) != MPI_SUCCESS) return;
    int rank, ranks;
    MPI_Comm_size(here, &ranks);
    MPI_Comm_rank(here, &rank);
    cpu_set_t cores, mine, *all = mem_alloc_array((size_t)ranks, sizeof *all);
    cores_usable(&cores);
    int error = MPI_Allgather(&cores, sizeof cores, MPI_BYTE, all, sizeof cores, MPI_BYTE, here);
    MPI_Comm_free(&here);
    int index = 0, sharers = 0;
    for (int i = 0; error == MPI_SUCCESS && i < ranks; i++) {
        if (!CPU_EQUAL(&all[i], &cores)) continue;
        index += i < rank;
        sharers++;
    }
    free(all);
    *sharers_p = sharers;
    if (sharers < 2 || !cores_share(&cores, index, sharers, &mine)) return;
    if (sched_setaffinity(0, sizeof mine, &mine) == 0) *sharers_p = 1;
}

// Chooses shared memory if all ranks are on one host, else MPI messages. The ranks use MPI to agree on the segment.
static enum status choose_comm(struct comm **comm_p)
{
    struct comm *mpi;
    TRY(comm_open_mpi(&mpi));
    struct comm *comm = mpi->size > 1 && comm_mpi_on_one_host(mpi) ? comm_mpi_to_shm(mpi) : mpi;
    const char *collectives = comm == mpi ? "mpi" : "shared_memory";
    if (comm->rank == 0)
        log_event(LOG_INFO, "group_connected", LOG_FIELD("ranks", comm->size), LOG_FIELD("collectives", collectives));
    *comm_p = comm;
    return STATUS_OK;
}

enum status group_mpi_open(int rank_hint, int n_ranks, int *argc, char ***argv, struct comm **comm_p, int *sharers_p)
{
    int provided, rank, size;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return status_fail(STATUS_INTERNAL, "MPI_Init_thread failed");
    }
    if (provided < MPI_THREAD_FUNNELED) {
        MPI_Finalize();
        return status_fail(STATUS_UNSUPPORTED, "this MPI does not allow threads (MPI_THREAD_FUNNELED)");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != n_ranks) {
        MPI_Finalize();
        if (rank_hint != 0) return status_fail(STATUS_INVALID, "%s", ""); // rank 0 reports it
        return status_fail(STATUS_INVALID,
                           "%d ranks were started, MPI connects %d of them: start them with this MPI's mpirun, or with "
                           "the srun --mpi type that it supports, such as pmix",
                           n_ranks, size);
    }
    // Log before the first collective, because it never returns if the ranks cannot reach each other.
    if (rank == 0) log_event(LOG_INFO, "group_connecting", LOG_FIELD("ranks", n_ranks));
    divide_cores(sharers_p);
    return choose_comm(comm_p);
}

static bool mpi_runs(void)
{
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    return started && !finished;
}

void group_mpi_finalize(void)
{
    if (mpi_runs()) MPI_Finalize();
}

void group_mpi_abort(int exit_code)
{
    if (mpi_runs()) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

bool group_mpi_set_allreduce_bf16(struct comm *comm)
{
    return comm_mpi_set_allreduce_bf16(comm);
}
