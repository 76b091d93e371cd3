// SPDX-License-Identifier: Apache-2.0
// Finds the rank that makes a group hang: a rank that does not answer, or that has not reached the point where the
// other ranks wait.
//
// A rank that waits in MPI, for the GPU or for a socket cannot answer. So every rank has a separate thread that answers
// roll calls and otherwise sleeps. These threads have their own sockets from the leader to each follower (a second set
// of wake-up sockets). The leader's thread runs the roll call, also when a follower requests one. The cost for the
// token loop is two atomic stores per pass.
//
// On the same sockets the leader notices immediately that a follower has ended. A follower that ends as planned
// announces this first (roll_call_close()), and a follower that fails sends the reason (roll_call_report()). If a
// socket closes without either message, the process was killed or its host was lost.
//
// The leader also asks for GPU reports (kernels/gpu_health.h) over these sockets.
#pragma once

#include "kernels/comm.h"
#include "kernels/gpu_health.h"

struct roll_call;

// ROLL_CALL_TIMEOUT_MS is long enough for a rank on a machine short of memory to answer.
enum { ROLL_CALL_SENTENCE_MAX = 640, ROLL_CALL_TIMEOUT_MIN_MS = 2000, ROLL_CALL_TIMEOUT_MS = 10000 };

// Returns how long a roll call waits for answers after work that hung for timeout_ms: the same time again, within
// bounds. Followers time out later than the leader by this time (engine.c), so that the leader has the result of its
// roll call first.
static inline int roll_call_timeout_for(int timeout_ms)
{
    return timeout_ms < ROLL_CALL_TIMEOUT_MIN_MS ? ROLL_CALL_TIMEOUT_MIN_MS
           : timeout_ms > ROLL_CALL_TIMEOUT_MS   ? ROLL_CALL_TIMEOUT_MS
                                                 : timeout_ms;
}

enum roll_call_result {
    ROLL_CALL_COMPLETE, // all ranks answer
    ROLL_CALL_AWAITED,  // all ranks answer; some have not reached the point where the other ranks wait
    ROLL_CALL_SILENT,   // some ranks do not answer
};

// Called by all ranks. Borrows the comm; comm.waits is true while this rank waits for other ranks.
enum status roll_call_open(struct comm *comm, struct roll_call **roll_call_p);
void roll_call_close(struct roll_call *r); // tells the other ranks that this rank ends as planned

// Leader: sets the function to call when a follower has ended unexpectedly. The roll call's thread calls the function
// with a sentence that says how the follower ended. Until a function is set, only roll calls detect such an end.
typedef void roll_call_lost_fn(void *arg, int rank, const char *sentence);
void roll_call_on_loss(struct roll_call *r, roll_call_lost_fn *lost, void *arg);

// Follower: tells the leader why this rank is about to fail. Does not wait.
void roll_call_report(struct roll_call *r, const char *sentence);

// Follower: sets the function that reads the report of its GPU. The roll call's thread calls it when the leader asks.
typedef void roll_call_gpu_fn(void *arg, struct gpu_report *report);
void roll_call_serve_gpu(struct roll_call *r, roll_call_gpu_fn *read, void *arg);

// Leader, any thread: copies the last report of each follower to reports[rank] (zeros if there is no report yet), and
// requests new reports. Does not wait. A follower that has not answered is not asked again. In a report older than
// roll_call_gpu_age_ms (ten samples of gpu_monitor.h), `known` is false.
extern int roll_call_gpu_age_ms; // tests shorten it
void roll_call_read_gpus(struct roll_call *r, struct gpu_report *reports);

// Called by the working thread around work that all ranks do together: first opening the model, then every pass.
void roll_call_enter(struct roll_call *r);
void roll_call_leave(struct roll_call *r);

// Any thread: asks all ranks and waits up to `timeout_ms` for their answers. `sentence` receives the result, which
// names ranks with host and process: "rank 3 (host gpu-2, pid 4711) does not answer".
enum roll_call_result roll_call_ask(struct roll_call *r, int timeout_ms, char sentence[ROLL_CALL_SENTENCE_MAX]);

// Any thread: returns the sum of comm.progress over the ranks that answered the last roll call of this rank.
uint64_t roll_call_progress(struct roll_call *r);
