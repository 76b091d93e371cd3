// SPDX-License-Identifier: Apache-2.0
// Runs one model on all ranks of a tensor-parallel group (group.h). Rank 0, the leader, decides every batch; the other
// ranks, the followers, run the passes that it broadcasts. Worker groups and speculators are both built on it.
//
// A pass is one broadcast of the encoded batch (batch_encoding.h) and one model_forward() on every rank. Waiting inside
// MPI burns a core, so between passes a follower blocks on a socket, the doorbell (doorbell.h), on which the leader
// announces every pass. The end of that socket tells a follower that the leader is gone. A leader whose follower has
// died logs that and ends its process with exit code 1, at any time.
//
// One thread per process makes all calls (MPI_THREAD_FUNNELED).
#pragma once

#include "engine/group.h"
#include "engine/model/model.h"
#include "kernels/gpu_health.h"

struct engine;

// Opens the model on every rank; called by all ranks with the same options. When one rank fails, all fail with its
// status. Only the lowest rank that failed has a sentence in status_message(), so that a mistake of all ranks is
// reported once; in a group of several ranks it names that rank and its host. INVALID: also when a rank differs from
// the leader in its model, its backend, its numeric types or its version. threads 0 means this rank's part of its
// host's cores.
enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p);
struct model *engine_model(const struct engine *e);

// Leader: the longest time that a pass may go without progress (a cut link does not fail, it hangs), for a group of any
// size. Progress is a completed stage, half a layer, so that a long pass on a slow machine goes on. After it the leader
// logs the rank that is missing (roll_call.h) and ends its process with exit code 1, which makes mpirun end the group;
// watchdog.h says how exact the time is. When the leader itself hangs, the followers do so later: by the same time, but
// by two seconds at least and ten at most. A rank that waits for its GPU gives up after five sixths of the time, in
// which a GPU has to complete a pass. Between passes, a rank that does not answer roll calls ends the group too.
// Default ENGINE_STEP_TIMEOUT_S; 0: no limit.
#define ENGINE_STEP_TIMEOUT_S "60"
void engine_set_step_timeout(struct engine *e, int timeout_ms);

// Any thread: a number that grows with every stage of a pass that this rank completes.
uint64_t engine_progress(const struct engine *e);

// Watches the GPU of this rank from now on (kernels/gpu_monitor.h). Called by all ranks, once, before a thread reads
// reports. No effect on a rank without a GPU.
void engine_watch_gpu(struct engine *e, const struct gpu_limits *limits);

// Leader, any thread until engine_close(): reports[rank] is the latest report of the rank's GPU, all zero for a rank
// without one. The reports of other ranks are the answers to the questions
// of the previous call. Does not wait.
void engine_read_gpus(struct engine *e, struct gpu_report *reports);

// Leader: names the first rank whose GPU is in trouble, with host and cause. False: none is.
enum { ENGINE_TROUBLE_MAX = 384 };
bool engine_gpu_trouble(const struct engine *e, const struct gpu_report *reports, char sentence[ENGINE_TROUBLE_MAX]);

// Leader: proves that all ranks reach each other, by a sum over all ranks that has to end within ten seconds, or the
// step timeout if that is shorter; otherwise the watchdog ends the process. Nothing to prove for one rank. A failure
// leaves the group unusable.
enum status engine_check(struct engine *e);

// Leader: one pass over the batch on all ranks. A failed pass leaves the group unusable, see group_abort().
enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result);

// Leader: around the work with the logits of a pass on the host, such as sampling and token masks. It has to end within
// the step timeout; otherwise the watchdog ends the process.
void engine_sampling_begin(struct engine *e);
void engine_sampling_end(struct engine *e);

// Followers: run the leader's passes until it closes (STATUS_OK) or dies (STATUS_UNAVAILABLE). Any other status is this
// rank's own failure, with its sentence: the program logs it and calls group_abort().
enum status engine_follow(struct engine *e);

// Leader: releases the followers from engine_follow(). Then every rank frees its model. The comm stays open.
void engine_close(struct engine *e);
