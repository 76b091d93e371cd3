// SPDX-License-Identifier: Apache-2.0
// The threads on which prompts are read and tokenised, and the prompts that wait for them. A job is a function: the
// pool knows neither gRPC nor tokenizers.
//
//   bounds   bytes and number of all jobs, and a tenant's part of the bytes (router/core/tenant_share.h); bytes of the
//            long jobs that run, which bounds the memory of tokenising for any number of threads
//   lanes    one thread runs short jobs only, so that no short prompt waits for a long one; the other threads prefer
//            long jobs, so that no number of short ones delays them. A pool of one thread alternates.
//   order    within a lane the tenant goes next whose jobs had the fewest bytes (virtual token counter, arXiv
//            2401.00588). Of one tenant the shortest job goes first, until a longer one has waited while the tenant got
//            as many bytes as it is longer.
//
// Threads: every function may be called from any thread. Jobs run on the pool's threads without its lock.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

enum {
    INTAKE_AT_ONCE_BYTES = 4096,  // of a message that is read where it arrives, at less cost than waking the pool
    INTAKE_SHORT_BYTES = 1 << 16, // of a short job at most
    // What a short message counts in addition that takes long to read all the same: no short prompt waits for it.
    INTAKE_POSTPONED_BYTES = INTAKE_SHORT_BYTES,
    // Of the long jobs that run at once; a longer job runs alone among them. Contexts of 131,072 tokens take about 512
    // KiB each.
    INTAKE_RUNNING_BYTES = 16 << 20,
};

struct intake_pool;
struct intake_lane;

// A place in a heap.
struct intake_key {
    uint64_t key, number; // the smallest key goes first, then the smallest number
    int place;            // -1: in no heap
};

// Embedded in what the job works on. The caller sets the first three fields, which must not change until it runs.
struct intake_job {
    void (*run)(struct intake_job *job, bool dropped); // exactly once; `dropped`: the pool gave the job up
    const char *tenant;
    size_t bytes;
    // The pool's:
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
    size_t max_bytes;         // of waiting and running jobs. A single job may be larger
    int max_jobs;             // that wait
    int tenant_share_percent; // of max_bytes, see tenant_share.h; 0: no bound
};

struct intake_pool *intake_pool_open(const struct intake_pool_options *options);
// Sets these options anew. Any thread.
void intake_pool_set_bounds(struct intake_pool *pool, int max_jobs, int tenant_share_percent);
// EXHAUSTED, with a sentence for the client, when a bound is reached: the job is then still the caller's.
enum status intake_pool_add(struct intake_pool *pool, struct intake_job *job, struct intake_owner *owner);
// Drops the owner's waiting jobs on the calling thread. Running ones go on.
void intake_pool_cancel(struct intake_pool *pool, struct intake_owner *owner);
int intake_pool_waiting(struct intake_pool *pool); // jobs
bool intake_pool_idle(struct intake_pool *pool);   // no job waits or runs
// Drops the waiting jobs and joins the threads. intake_pool_cancel() may be called until the pool is freed.
void intake_pool_close(struct intake_pool *pool);
void intake_pool_free(struct intake_pool *pool); // after intake_pool_close(); NULL is allowed
