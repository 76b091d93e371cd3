// SPDX-License-Identifier: Apache-2.0
// The threads of one CPU backend: the caller and `threads - 1` workers, made once and asleep between steps.
//
// A run hands out items, and a thread that is held up (another process on its core, a page fault) simply takes fewer of
// them: the run ends when the items are done, not when every worker has come by. Items should therefore be small, some
// ten per thread. Workers spin for some tens of microseconds after a run, since the next one of the same forward pass
// is usually closer than a wake-up is quick, and then sleep at no cost.
//
// Other processes. A thread that loses its core in the middle of an item holds up the whole run, for a time slice of
// the other. So threads offer their core every millisecond, between items, and the others do the work of one whose
// offer was taken.
//
// Places. As many threads as the caller has cores: each worker is pinned to one, so that memory stays near the thread
// that touched it first. The caller is not, since threads that it makes would be pinned along; it has the core that is
// left, and when another process keeps taking that, it changes places with a worker: all wait for the caller between
// runs. Fewer or more threads: nothing is pinned, for two processes that pinned half a machine each would do so on the
// same half.
//
// Threads: one thread at a time may call thread_pool_run; not from within an item. Forking: a child has no workers, so
// a pool belongs to the process that opened it.
#pragma once

#include <stdint.h>

#include "base/status.h"

struct thread_pool;

// `thread` is in [0, thread_pool_threads()), the caller being 0: an index for memory that threads must not share.
typedef void (*thread_pool_fn)(void *arg, int item, int thread);

enum thread_pool_order {
    THREAD_POOL_STATIC, // thread t starts on the t-th of equal contiguous shares (thread_pool_range), always the same
                        // ones, and helps others later: for memory that should stay with the thread (or NUMA node) that
                        // touched it first
    THREAD_POOL_DYNAMIC, // whoever is free takes the next item: for items of very different cost, the dearest first
};

// `threads` >= 1, the caller included. STATUS_EXHAUSTED when the system gives no thread.
enum status thread_pool_open(int threads, struct thread_pool **pool_p);
void thread_pool_close(struct thread_pool *pool); // NULL is fine; no run may be under way
int thread_pool_threads(const struct thread_pool *pool);

// Calls fn(arg, item, thread) once for each item of [0, n_items) and returns when all have returned. What the caller
// wrote before is visible to the items, and theirs to the caller afterwards.
void thread_pool_run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_items);

// Likewise in THREAD_POOL_STATIC order, items [g * size, (g + 1) * size) of each group g in the same share.
void thread_pool_run_groups(struct thread_pool *pool, thread_pool_fn fn, void *arg, int n_groups, int size);

// First of the items (or groups) that thread `thread` of `threads` starts on; its last is the next one's first less 1.
static inline int thread_pool_range(int n, int thread, int threads)
{
    return (int)((int64_t)n * thread / threads);
}

// The thread whose share an item (or group) is in.
static inline int thread_pool_thread_of(int n, int item, int threads)
{
    return (int)((((int64_t)item + 1) * threads - 1) / n);
}
