// SPDX-License-Identifier: Apache-2.0
// Finds the rank that makes a group hang: a rank that does not answer, or has not reached the point at which the other
// ranks wait.
//
// A rank that waits in MPI, for the GPU or for a socket cannot answer. So every rank has a thread that does nothing but
// answer roll calls; it sleeps otherwise. These threads have their own sockets (a second doorbell) from the leader to
// each follower. The leader's thread runs the roll call, also on request of a follower. The token loop pays two atomic
// stores per pass.
//
// Through the same sockets the leader learns at once that a follower has ended: a follower that ends as planned says so
// first (roll_call_close), one that fails sends its sentence (roll_call_report), and a socket that closes without
// either belongs to a process that was killed or to a host that was lost.
//
// They also carry what each rank knows of its GPU (kernels/gpu_health.h) to the leader, which asks for it.
#pragma once

#include "kernels/comm.h"
#include "kernels/gpu_health.h"

struct roll_call;

// ROLL_CALL_TIMEOUT_MS gives a rank on a machine short of memory time to answer.
enum { ROLL_CALL_SENTENCE_MAX = 640, ROLL_CALL_TIMEOUT_MIN_MS = 2000, ROLL_CALL_TIMEOUT_MS = 10000 };

// The time to answer after work that hung for timeout_ms: as long again, within bounds. Followers time out this much
// later than the leader (engine.c), so that the leader has the result of its roll call first.
static inline int roll_call_timeout_for(int timeout_ms)
{
    return timeout_ms < ROLL_CALL_TIMEOUT_MIN_MS ? ROLL_CALL_TIMEOUT_MIN_MS
           : timeout_ms > ROLL_CALL_TIMEOUT_MS   ? ROLL_CALL_TIMEOUT_MS
                                                 : timeout_ms;
}

enum roll_call_result {
    ROLL_CALL_COMPLETE, // all ranks answer
    ROLL_CALL_AWAITED,  // all ranks answer; some have not reached the point at which the others wait
    ROLL_CALL_SILENT,   // some ranks do not answer
};

// Called by all ranks. Borrows the comm, whose `waits` says whether this rank waits for others.
enum status roll_call_open(struct comm *comm, struct roll_call **roll_call_p);
void roll_call_close(struct roll_call *r); // tells the other ranks that this one ends as planned

// Leader: what to do when a follower has ended otherwise. Called on the roll call's thread with the sentence that says
// how it ended. Until this is set such an end is only seen by roll calls.
typedef void roll_call_lost_fn(void *arg, int rank, const char *sentence);
void roll_call_on_loss(struct roll_call *r, roll_call_lost_fn *lost, void *arg);

// Follower: tells the leader why this rank is about to fail. Does not wait.
void roll_call_report(struct roll_call *r, const char *sentence);

// Follower: the function reads the report of its GPU, on the roll call's thread, when the leader asks for it.
typedef void roll_call_gpu_fn(void *arg, struct gpu_report *report);
void roll_call_serve_gpu(struct roll_call *r, roll_call_gpu_fn *read, void *arg);

// Leader, any thread: copies the reports that the followers sent last to reports[rank], zeros before the first, and
// asks for the next ones. Does not wait. A follower that has not answered is not asked again. The numbers of a report
// that is older than roll_call_gpu_age_ms (as gpu_monitor.h, ten samples) are not `known`.
extern int roll_call_gpu_age_ms; // tests shorten it
void roll_call_read_gpus(struct roll_call *r, struct gpu_report *reports);

// Called by the working thread around everything that all ranks do together: first opening the model, then every pass.
void roll_call_enter(struct roll_call *r);
void roll_call_leave(struct roll_call *r);

// Any thread: asks all ranks and waits up to `timeout_ms` for their answers. The sentence names ranks with host and
// process: "rank 3 (host gpu-2, pid 4711) does not answer".
enum roll_call_result roll_call_ask(struct roll_call *r, int timeout_ms, char sentence[ROLL_CALL_SENTENCE_MAX]);
