// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel group: the ranks of one MPI job (or one lone process) that run one model in step. Rank 0, the
// leader, decides every batch; the others follow. Worker groups and speculators are both built on it.
//
// A step is one broadcast of the ragged batch and one model_forward on every rank. A follower that has nothing to do
// blocks on a doorbell socket, never inside MPI, which would burn a core; the leader rings before a step when the
// group has been idle. A follower sees the leader's death as end of file on the doorbell.
//
// One thread per process makes all calls (MPI_THREAD_FUNNELED).
#pragma once

#include "kernels/comm.h"
#include "model/model.h"

// Joins the MPI job this process was started in, or stands alone when it was started without mpirun (then MPI is
// never initialised). Ranks of one host that have the same cores divide them: each keeps its share alone, as do threads
// that it starts later. Ranks of one host meet in shared memory, others by messages. Signals that the program takes by
// sigwait must be blocked before.
enum status group_open(int *argc, char ***argv, struct comm **comm_p);
void group_close(struct comm *comm);
// Sums between hosts in half the bytes, see comm_mpi.h; no effect on ranks of one host, nor on GPUs, which have sums of
// their own. On all ranks, before a model.
void group_set_allreduce_bf16(struct comm *comm);
// Ends the whole job at once with this exit code: a group that lost a rank's step cannot go on. From the MPI thread.
_Noreturn void group_abort(struct comm *comm, int exit_code);

// What mpirun says of this process before MPI is initialised, so that one rank alone speaks of wrong options (0 when
// started without mpirun).
int group_rank_hint(void);
// Compute threads of this rank: `asked`, or for 0 its share of the cores the process may use, at least 1.
int group_threads(int asked);

// Where this process stands among the group's on its host: its index and their number; 0 of 1 without MPI.
void group_place(int *host_rank_p, int *host_ranks_p);

struct engine;

// Opens the model on every rank and agrees that all did; when one failed, every rank fails with its status. The lowest
// rank that failed has the sentence in status_message(), the others an empty one, so that a mistake common to all is
// told once. Options must be the same on all ranks; threads 0 means this rank's share of its host's cores.
enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p);
int engine_rank(const struct engine *e);
struct model *engine_model(const struct engine *e);

// Leader: how long one pass may take before the group counts as stuck (a cut link does not fail, it hangs). Then the
// leader logs which rank is missing (engine/roll.h) and ends the process with 1, and mpirun the group; where the leader
// is the one that hangs, the others do so ten seconds later. A rank that waits for its GPU gives up earlier, after five
// sixths of the time. Outside of passes a rank that does not answer ends the group. Default 120 s; 0 is no limit.
void engine_set_step_timeout(struct engine *e, int limit_ms);

// Leader: one pass over the batch on all ranks. A failed step leaves the group unusable (see group_abort).
enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result);

// Followers: serve the leader's steps until it closes (STATUS_OK) or dies (STATUS_UNAVAILABLE). Any other status is
// this rank's own failure, with its sentence: the program logs it and calls group_abort.
enum status engine_follow(struct engine *e);

// Leader: releases the followers from engine_follow. Then every rank frees its model. The comm stays open.
void engine_close(struct engine *e);
