// SPDX-License-Identifier: Apache-2.0
// See thread_pool.h.
//
// Every thread has a share of the items, a range in one atomic word. Its owner takes items from the front, others from
// the back when their own share is empty. Only who has claimed an item reads the run's other fields, and the run
// cannot end before that item has: so a worker that wakes late, in the middle of a later run, does no harm.
#include "kernels/cpu/thread_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/mem.h"
#include "base/no_alloc.h"

enum {
    CACHE_LINE = 128, // two lines: the neighbour is prefetched along
    SPIN_NS = 50000,
    PAUSES = 64, // between looks at the clock
    // Below the time slices of Linux (1.4 ms on two cores, 2.8 ms on eight and more), far above what an offer costs
    // when nobody takes it (half a microsecond).
    TURN_NS = 1000000,
    WATCH_NS = 50000000, // between looks at whether the caller should change places
};

struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t range; // first item left, one past the last in the upper half
    _Alignas(CACHE_LINE) int64_t turn_ns;        // the thread's own: when it last got its core
    _Atomic int64_t lost_ns;                     // to others that took its offers, since the last look
};

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    int index;
};

struct thread_pool {
    int threads, started;   // threads with the caller; workers that really run
    struct share *shares;   // [threads]
    struct worker *workers; // [threads - 1]

    bool pinned;
    cpu_set_t cores; // when pinned: that the caller may use
    int *core;       // [threads], of each thread
    int64_t watched_ns;

    // Of the run under way; written between runs.
    thread_pool_fn fn;
    void *arg;
    bool no_alloc;      // the caller must not allocate, so no more may those who help it
    _Atomic bool queue; // only a hint to others, so it may be read late

    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; // of runs: what idle workers watch
    _Atomic int sleepers;
    _Atomic bool stop;
    _Alignas(CACHE_LINE) _Atomic uint32_t left; // items not done: what the caller watches
    _Atomic bool caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); // any return means: look again
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Waits a little for *word to differ from `seen`; false: it has not.
static bool spin_until_not(_Atomic uint32_t *word, uint32_t seen)
{
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            pause_cpu();
        }
    } while (now_ns() < end);
    return false;
}

// ---- items ----------------------------------------------------------------------------------------------------------

static uint64_t range_of(uint32_t first, uint32_t end)
{
    return first | (uint64_t)end << 32;
}

// Takes an item off the front or the back of a share; -1 when it is empty.
static int share_take(struct share *share, bool front)
{
    uint64_t range = atomic_load_explicit(&share->range, memory_order_relaxed);
    for (;;) {
        uint32_t first = (uint32_t)range, end = (uint32_t)(range >> 32);
        if (first >= end) return -1;
        uint64_t rest = front ? range_of(first + 1, end) : range_of(first, end - 1);
        if (atomic_compare_exchange_weak_explicit(&share->range, &range, rest, memory_order_acquire,
                                                  memory_order_relaxed))
            return (int)(front ? first : end - 1);
    }
}

// One's own share first, then the others' in turn. A queue is one share that all take from the front of.
static int take_item(struct thread_pool *pool, int thread)
{
    int item = share_take(&pool->shares[thread], true);
    for (int i = 1; item < 0 && i < pool->threads; i++) {
        int other = (thread + i) % pool->threads;
        item = share_take(&pool->shares[other], atomic_load_explicit(&pool->queue, memory_order_relaxed));
    }
    return item;
}

// Counts items that the thread has done; the run may end by it.
static void settle(struct thread_pool *pool, uint32_t done)
{
    if (done && atomic_fetch_sub(&pool->left, done) == done && atomic_load(&pool->caller_sleeps))
        futex_wake(&pool->left, 1);
}

static bool turn_is_over(const struct share *own)
{
    return now_ns() - own->turn_ns >= TURN_NS;
}

// Called when the thread holds no item and all it has done is counted: nobody waits for it while another has its core.
// An offer that nobody wants returns at once.
static void offer_core(struct share *own)
{
    int64_t now = now_ns();
    sched_yield();
    own->turn_ns = now_ns();
    atomic_fetch_add_explicit(&own->lost_ns, own->turn_ns - now, memory_order_relaxed);
}

static void work(struct thread_pool *pool, int thread)
{
    uint32_t done = 0;
    for (int item; (item = take_item(pool, thread)) >= 0;) {
        if (thread && pool->no_alloc) no_alloc_begin("a step of the token loop");
        pool->fn(pool->arg, item, thread);
        if (thread && pool->no_alloc) no_alloc_end();
        done++;
        if (!turn_is_over(&pool->shares[thread])) continue;
        settle(pool, done);
        done = 0;
        offer_core(&pool->shares[thread]);
    }
    settle(pool, done);
}

static void set_core(pthread_t thread, int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(thread, sizeof one, &one); // refused: then the thread runs anywhere
}

// The caller goes to the core of the worker that lost the least, and that one to the caller's.
static void change_places(struct thread_pool *pool)
{
    int64_t now = now_ns();
    if (now - pool->watched_ns < WATCH_NS) return;
    int64_t lost = atomic_exchange(&pool->shares[0].lost_ns, 0), least = INT64_MAX;
    int with = 0;
    for (int t = 1; t < pool->threads; t++) {
        int64_t theirs = atomic_exchange(&pool->shares[t].lost_ns, 0);
        if (theirs < least) least = theirs, with = t;
    }
    if (lost > (now - pool->watched_ns) / 8) {
        int core = pool->core[0];
        pool->core[0] = pool->core[with];
        pool->core[with] = core;
        set_core(pool->workers[with - 1].thread, core);
        set_core(pthread_self(), pool->core[0]); // moves it now; then it is free again
        pthread_setaffinity_np(pthread_self(), sizeof pool->cores, &pool->cores);
    }
    pool->watched_ns = now;
}

static void run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_groups,
                int size)
{
    int n_items = n_groups * size;
    if (pool->threads == 1 || n_items <= 1) {
        for (int i = 0; i < n_items; i++)
            fn(arg, i, 0);
        return;
    }
    if (pool->pinned) change_places(pool);
    pool->fn = fn;
    pool->arg = arg;
    pool->no_alloc = no_alloc_active();
    atomic_store_explicit(&pool->queue, order == THREAD_POOL_DYNAMIC, memory_order_relaxed);
    atomic_store(&pool->left, (uint32_t)n_items);
    int shares = order == THREAD_POOL_DYNAMIC ? 1 : pool->threads;
    for (int t = 0; t < shares; t++) {
        uint32_t first = (uint32_t)(thread_pool_range(n_groups, t, shares) * size);
        uint32_t end = (uint32_t)(thread_pool_range(n_groups, t + 1, shares) * size);
        atomic_store_explicit(&pool->shares[t].range, range_of(first, end), memory_order_release);
    }
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers)) futex_wake(&pool->epoch, INT_MAX);
    work(pool, 0);
    for (uint32_t left; (left = atomic_load(&pool->left)) != 0;) {
        if (spin_until_not(&pool->left, left)) continue;
        atomic_store(&pool->caller_sleeps, true);
        futex_wait(&pool->left, left);
        atomic_store(&pool->caller_sleeps, false);
    }
}

void thread_pool_run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_items)
{
    run(pool, order, fn, arg, n_items, 1);
}

void thread_pool_run_groups(struct thread_pool *pool, thread_pool_fn fn, void *arg, int n_groups, int size)
{
    run(pool, THREAD_POOL_STATIC, fn, arg, n_groups, size);
}

// ---- threads --------------------------------------------------------------------------------------------------------

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct thread_pool *pool = worker->pool;
    for (uint32_t seen = 0;;) {
        if (!spin_until_not(&pool->epoch, seen)) {
            atomic_fetch_add(&pool->sleepers, 1);
            while (atomic_load(&pool->epoch) == seen)
                futex_wait(&pool->epoch, seen);
            atomic_fetch_sub(&pool->sleepers, 1);
            pool->shares[worker->index].turn_ns = now_ns();
        }
        seen = atomic_load(&pool->epoch);
        if (atomic_load(&pool->stop)) return NULL;
        work(pool, worker->index);
    }
}

static enum status workers_start(struct thread_pool *pool)
{
    // Signals are for the threads that the program made for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < pool->threads - 1; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i + 1};
        error = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (error) break;
        pool->started++;
        if (pool->pinned) set_core(pool->workers[i].thread, pool->core[i + 1]);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "compute thread %d of %d: %s", pool->started + 2, pool->threads,
                       strerror(error));
}

enum status thread_pool_open(int threads, struct thread_pool **pool_p)
{
    struct thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    struct share *shares = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *shares);
    if (!pool || !shares) {
        free(pool);
        free(shares);
        return status_fail(STATUS_EXHAUSTED, "no memory for %d threads", threads);
    }
    memset(pool, 0, sizeof *pool);
    memset(shares, 0, (size_t)threads * sizeof *shares);
    pool->threads = threads;
    pool->shares = shares;
    pool->workers = mem_alloc_array((size_t)threads, sizeof *pool->workers);
    pool->core = mem_alloc_array((size_t)threads, sizeof *pool->core);
    cores_usable(&pool->cores);
    pool->pinned = CPU_COUNT(&pool->cores) == threads;
    for (int t = 0; pool->pinned && t < threads; t++)
        pool->core[t] = cores_at(&pool->cores, t);
    enum status status = workers_start(pool);
    if (status) {
        thread_pool_close(pool);
        return status;
    }
    *pool_p = pool;
    return STATUS_OK;
}

void thread_pool_close(struct thread_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, INT_MAX);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool->core);
    free(pool->shares);
    free(pool);
}

int thread_pool_threads(const struct thread_pool *pool)
{
    return pool->threads;
}
