// SPDX-License-Identifier: Apache-2.0
// The threads that read and tokenise prompts, and the queue of prompts that wait for them. A job is a function: the
// pool knows neither gRPC nor tokenizers.
//
//   bounds   the pool limits the number of waiting jobs, the bytes of all jobs, and a tenant's share of these bytes
//            (router/core/tenant_share.h). It also limits the bytes of the long jobs that run, which bounds the memory
//            of tokenising for any number of threads.
//   lanes    one thread runs only short jobs, so that no short prompt waits for a long one. The other threads prefer
//            long jobs, so that short jobs cannot delay them. A pool with one thread alternates between both kinds.
//   order    the tenant with the fewest bytes of started jobs goes next (virtual token counter, arXiv 2401.00588).
//            Within a tenant, the shortest job goes next. For each byte of the tenant that starts meanwhile, a waiting
//            job counts as one byte shorter, so that long jobs get their turn.
//
// Threads: every function may be called from any thread. Jobs run on the pool's threads without its lock.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

enum {
    // up to this size, a message is read on the I/O thread, because waking the pool costs more
    INTAKE_AT_ONCE_BYTES = 4096,
    INTAKE_SHORT_BYTES = 1 << 16, // longest short job
    // Bytes that are added to the size of a postponed message, which takes long to read. They make the message a long
    // job, so that no short prompt waits for it.
    INTAKE_POSTPONED_BYTES = INTAKE_SHORT_BYTES,
    // Limit of the bytes of all long jobs that run at the same time. A job over this limit runs as the only long job. A
    // prompt of 131,072 tokens takes about 512 KiB.
    INTAKE_RUNNING_BYTES = 16 << 20,
};

struct intake_pool;
struct intake_lane;

// An entry of a heap.
struct intake_key {
    uint64_t key;    // the entry with the smallest key is first
    uint64_t number; // order of entries with equal keys: the smallest number is first
    int place;       // index in the heap; -1: in no heap
};

// A job, embedded in the object that it works on. The caller sets the first three fields, which must not change until
// the job runs.
struct intake_job {
    void (*run)(struct intake_job *job, bool dropped); // called exactly once; `dropped`: free the job without doing it
    const char *tenant;                                // borrowed
    size_t bytes; // size of the message, which counts in the bounds and in the order
    // Members of the pool:
    struct intake_key key;
    struct intake_lane *lane;
    struct intake_owner *owner;
    struct intake_job *owner_previous, *owner_next;
};

// The waiting jobs of a client, so that they can be dropped together. Starts as zeros; the pool's lock guards it.
struct intake_owner {
    struct intake_job *jobs;
};

struct intake_pool_options {
    int threads;
    size_t max_bytes;         // limit of waiting and running jobs together; a single job may be larger
    int max_jobs;             // limit of waiting jobs
    int tenant_share_percent; // a tenant's share of max_bytes, see tenant_share.h; 0: no limit
};

struct intake_pool *intake_pool_open(const struct intake_pool_options *options);
// Changes two options of a running pool.
void intake_pool_set_bounds(struct intake_pool *pool, int max_jobs, int tenant_share_percent);
// Adds a job. Returns EXHAUSTED if a limit is reached, UNAVAILABLE if the pool closes. The caller then still owns the
// job, and status_message() has the error message for the client. If `owner` is NULL, the job is not dropped before
// intake_pool_close().
enum status intake_pool_add(struct intake_pool *pool, struct intake_job *job, struct intake_owner *owner);
// Drops the owner's waiting jobs on the calling thread. Running jobs continue.
void intake_pool_cancel(struct intake_pool *pool, struct intake_owner *owner);
int intake_pool_waiting(struct intake_pool *pool); // returns the number of waiting jobs
bool intake_pool_idle(struct intake_pool *pool);   // returns true if no job waits or runs
// Drops the waiting jobs and joins the threads. intake_pool_cancel() may be called until the pool is freed.
void intake_pool_close(struct intake_pool *pool);
void intake_pool_free(struct intake_pool *pool); // after intake_pool_close(); NULL is allowed
