// SPDX-License-Identifier: Apache-2.0
// Runs one model on all ranks of a group (group.h). Rank 0, the leader, decides every batch. The other ranks, the
// followers, run the passes that the leader broadcasts. Worker groups and speculators are both built on the engine.
//
// A pass is one broadcast of the encoded batch (batch_encoding.h) and one model_forward() on every rank. Waiting inside
// MPI keeps a core busy, so between passes a follower blocks on a socket (wakeup.h). The leader announces every pass on
// this socket. End of file on the socket means that the leader is gone. If a follower dies between engine_open() and
// engine_close(), the leader logs the loss and ends its own process with exit code 1.
//
// One thread per process makes all calls (MPI_THREAD_FUNNELED), except of functions marked "any thread".
#pragma once

#include "engine/group.h"
#include "engine/model/model.h"
#include "kernels/gpu_health.h"

struct engine;

// Opens the model on every rank; called by all ranks with the same options. If one rank fails, all ranks fail with its
// status. Only the lowest failed rank has a message in status_message(), so that an error on all ranks is reported
// once. If that rank has ended, the leader has the message. In a group of several ranks the message names that rank and
// its host. Returns INVALID also if a rank differs from the leader in its program version, model, backend, numeric
// types or limits. Ranks with other numbers of stages or layers fail before weights are read. If `threads` is 0, this
// rank uses its part of the host's cores.
enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p);
struct model *engine_model(const struct engine *e);

// Leader: sets the longest time of a pass without progress, for a group of any size. It is needed because a call hangs
// if the link to a rank is cut. Progress is a completed stage (kernels/backend.h), so a long pass on a slow machine is
// not ended. With pipeline stages, progress of any rank counts, and a hang is noticed within twice the timeout. After
// timeout_ms the leader logs the missing rank (roll_call.h) and ends its process with exit code 1. mpirun then ends the
// group. watchdog.h states the precision of the time limit. If the leader itself hangs, the followers end later: after
// timeout_ms plus roll_call_timeout_for(timeout_ms). In a group of several GPUs, a rank gives up waiting for its GPU
// after five sixths of timeout_ms, so a GPU must complete a pass in this time. Between passes the followers ask for
// roll calls, and a rank that does not answer ends the group too. The default is ENGINE_STEP_TIMEOUT_S; 0 means no
// limit.
#define ENGINE_STEP_TIMEOUT_S "60"
void engine_set_step_timeout(struct engine *e, int timeout_ms);

// Any thread: returns a number that grows with every stage of a pass that this rank completes.
uint64_t engine_progress(const struct engine *e);

// Watches the GPU of this rank from now on (kernels/gpu_monitor.h). Called once by all ranks, before any thread reads
// reports. No effect on a rank without a GPU.
void engine_watch_gpu(struct engine *e, const struct gpu_limits *limits);

// Leader, any thread until engine_close(): stores the latest report of each rank's GPU in reports[rank], all zero for a
// rank without a GPU. Each call asks the other ranks for reports, and later calls return their answers. Does not wait.
void engine_read_gpus(struct engine *e, struct gpu_report *reports);

// Leader: writes a sentence that names the first rank whose GPU is in trouble, the GPU and the cause. Returns false if
// no GPU is in trouble.
enum { ENGINE_TROUBLE_MAX = 384 };
bool engine_gpu_trouble(const struct engine *e, const struct gpu_report *reports, char sentence[ENGINE_TROUBLE_MAX]);

// Leader: checks that all ranks reach each other, by a sum over all ranks and, with pipeline stages, by a message
// through the stages. The check must end within ten seconds, or within the step timeout if that is shorter. Otherwise
// the watchdog ends the process. A group of one rank needs no check, and nothing is done. A failure leaves the group
// unusable.
enum status engine_check(struct engine *e);

// Leader: runs one pass over the batch on all ranks. A failed pass leaves the group unusable, see group_abort().
enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result);

// Leader: begin and end the work on the host with the logits of a pass, such as sampling and token masks. The work must
// end within the step timeout, otherwise the watchdog ends the process.
void engine_sampling_begin(struct engine *e);
void engine_sampling_end(struct engine *e);

// Follower: runs the leader's passes until the leader closes (STATUS_OK). Any other status means that the leader has
// died or that this rank has failed, as status_message() says. The program then logs the failure and calls
// group_abort().
enum status engine_follow(struct engine *e);

// Frees the engine and the model of this rank; called by all ranks. The leader first releases the followers from
// engine_follow(). The comm stays open.
void engine_close(struct engine *e);
