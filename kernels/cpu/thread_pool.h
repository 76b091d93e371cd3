// SPDX-License-Identifier: Apache-2.0
// The thread pool of one CPU backend: the calling thread and `threads - 1` workers, created once.
//
// A run distributes items over the threads and ends when all items are done. It does not wait for every worker to
// arrive. A thread that loses its core or takes a page fault claims fewer items, so items should be small: about ten
// for each thread. After a run, workers spin for tens of microseconds, because the next run of the same forward pass
// usually follows sooner than a wake-up takes. Then they sleep.
//
// Other processes: a thread that loses its core in the middle of an item delays the whole run by a time slice. So each
// thread calls sched_yield() every millisecond between items.
//
// Core placement: each worker is bound to its core, which keeps memory near the thread that touched it first. The
// caller gets the first core, but is not bound: threads that it creates would inherit the mask, and a bound caller
// could not leave a core that another process uses. If that process stays, the caller swaps cores with a worker.
//
// Threads: one thread at a time may call thread_pool_run, but no item may call it. Forking: a child has no workers, so
// a pool belongs to the process that opened it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

struct thread_pool;

// Computes one item. `thread` is in [0, threads of the pool), where 0 is the caller: an index for memory that threads
// must not share.
typedef void (*thread_pool_fn)(void *arg, int item, int thread);

enum thread_pool_order {
    // Thread t starts with the t-th of equal contiguous ranges (thread_pool_range), the same in every run, then helps
    // other threads. For memory that should stay near one thread (NUMA).
    THREAD_POOL_STATIC,
    // Threads claim the next item in order. For items of very different cost, with expensive items first.
    THREAD_POOL_DYNAMIC,
};

// Opens a pool. `threads` >= 1 includes the caller. cores [threads] has the core of each thread, the caller first. If
// it is NULL, or there is one thread, no thread is bound. A pool that does not `spin` sleeps immediately when it has to
// wait: spinning would use up a quota of CPU time. Returns STATUS_EXHAUSTED if the system cannot create a thread.
enum status thread_pool_open(int threads, const int *cores, bool spins, struct thread_pool **pool_p);
void thread_pool_close(struct thread_pool *pool); // NULL is fine; no run may be in progress

// Calls fn(arg, item, thread) once for each item of [0, n_items) and returns when all calls have returned. Items see
// the caller's earlier writes, and the caller sees the items' writes afterwards.
void thread_pool_run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_items);

// Returns true if no worker sleeps: the next run need not wake one, which takes tens of microseconds.
bool thread_pool_is_awake(const struct thread_pool *pool);

// Like thread_pool_run in THREAD_POOL_STATIC order, but items [g * size, (g + 1) * size) of each group g are in one
// thread's range.
void thread_pool_run_groups(struct thread_pool *pool, thread_pool_fn fn, void *arg, int n_groups, int size);

// Returns the first item (or group) of a thread's range of n. The range ends where the next thread's range begins.
static inline int thread_pool_range(int n, int thread, int threads)
{
    return (int)((int64_t)n * thread / threads);
}

// Returns the thread that has this item (or group) in its range.
static inline int thread_pool_thread_of(int n, int item, int threads)
{
    return (int)((((int64_t)item + 1) * threads - 1) / n);
}
