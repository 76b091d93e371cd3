// SPDX-License-Identifier: Apache-2.0
// See thread_pool.h. Each thread has a range of items in one atomic word. The owner claims from the front, and other
// threads claim from the back when their own range is empty. Only a thread that has claimed an item reads the run's
// other fields, and a run cannot end before its claimed items. So a worker that wakes late, during a later run, does no
// harm.
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

#include "lib/base/cores.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"

enum {
    CACHE_LINE = 128, // two lines: the hardware prefetches lines in pairs
    SPIN_NS = 50000,
    SPIN_PAUSES = 64, // pauses between reads of the clock
    // This is below the time slices of Linux (1.4 ms on two cores, 2.8 ms on eight and more), and far above the cost of
    // a sched_yield() that changes nothing (half a microsecond).
    YIELD_INTERVAL_NS = 1000000,
    CORE_CHECK_NS = 50000000, // interval of caller_change_core
};

struct thread_range {
    _Alignas(CACHE_LINE) _Atomic uint64_t items; // first remaining item; one past the last item in the upper half
    _Alignas(CACHE_LINE) int64_t yielded_ns;     // private to the thread: when it last yielded or woke
    _Atomic int64_t lost_ns;                     // time that sched_yield() gave to other processes since the last check
};

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    int index;
};

struct thread_pool {
    int threads, started;        // threads includes the caller; started counts workers that run
    struct thread_range *ranges; // [threads]
    struct worker *workers;      // [threads - 1]

    bool spins;
    int *core;        // [threads] core of each thread, or NULL: the threads are not bound
    cpu_set_t usable; // mask of the caller
    int64_t core_checked_ns;

    // The current run. Written between runs.
    thread_pool_fn fn;
    void *arg;
    bool no_alloc;        // the caller must not allocate, so its workers must not, either
    _Atomic bool dynamic; // decides from which end other threads claim; a late read is harmless

    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; // number of runs: idle workers wait for it to change
    _Atomic int sleepers;
    _Atomic bool stop;
    _Alignas(CACHE_LINE) _Atomic uint32_t left; // number of items not done: the caller waits for 0
    _Atomic bool caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); // spurious returns are fine: callers check again
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

// Spins until *word differs from `seen`. Returns false after SPIN_NS, or immediately in a pool that does not spin.
static bool spin_until_changed(const struct thread_pool *pool, _Atomic uint32_t *word, uint32_t seen)
{
    int64_t end = pool->spins ? now_ns() + SPIN_NS : 0;
    do {
        for (int i = 0; i < SPIN_PAUSES && end; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            pause_cpu();
        }
    } while (end && now_ns() < end);
    return false;
}

// ---- items ----------------------------------------------------------------------------------------------------------

static uint64_t range_pack(uint32_t first, uint32_t end)
{
    return first | (uint64_t)end << 32;
}

// Claims an item from the front or the back of a range. Returns -1 if the range is empty.
static int range_claim(struct thread_range *range, bool front)
{
    uint64_t items = atomic_load_explicit(&range->items, memory_order_relaxed);
    for (;;) {
        uint32_t first = (uint32_t)items, end = (uint32_t)(items >> 32);
        if (first >= end) return -1;
        uint64_t rest = front ? range_pack(first + 1, end) : range_pack(first, end - 1);
        if (atomic_compare_exchange_weak_explicit(&range->items, &items, rest, memory_order_acquire,
                                                  memory_order_relaxed))
            return (int)(front ? first : end - 1);
    }
}

// Claims an item from the thread's own range, or else from other ranges. THREAD_POOL_DYNAMIC puts all items into range
// 0.
static int item_claim(struct thread_pool *pool, int thread)
{
    int item = range_claim(&pool->ranges[thread], true);
    for (int i = 1; item < 0 && i < pool->threads; i++) {
        int other = (thread + i) % pool->threads;
        item = range_claim(&pool->ranges[other], atomic_load_explicit(&pool->dynamic, memory_order_relaxed));
    }
    return item;
}

// Reports items as done. May end the run.
static void items_count_done(struct thread_pool *pool, uint32_t done)
{
    if (done && atomic_fetch_sub(&pool->left, done) == done && atomic_load(&pool->caller_sleeps))
        futex_wake(&pool->left, 1);
}

static bool yield_is_due(const struct thread_range *own)
{
    return now_ns() - own->yielded_ns >= YIELD_INTERVAL_NS;
}

// Yields the core. Called when the thread has no item and has reported all its items, so no run waits for it while
// another process has its core.
static void core_yield(struct thread_range *own)
{
    int64_t now = now_ns();
    sched_yield();
    own->yielded_ns = now_ns();
    atomic_fetch_add_explicit(&own->lost_ns, own->yielded_ns - now, memory_order_relaxed);
}

static void pool_work(struct thread_pool *pool, int thread)
{
    uint32_t done = 0;
    for (int item; (item = item_claim(pool, thread)) >= 0;) {
        if (thread && pool->no_alloc) no_alloc_begin("a step of the token loop");
        pool->fn(pool->arg, item, thread);
        if (thread && pool->no_alloc) no_alloc_end();
        done++;
        if (!yield_is_due(&pool->ranges[thread])) continue;
        items_count_done(pool, done);
        done = 0;
        core_yield(&pool->ranges[thread]);
    }
    items_count_done(pool, done);
}

static void thread_set_core(pthread_t thread, int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(thread, sizeof one, &one); // if refused, the thread runs on any core
}

// If the caller lost over an eighth of the time since the last check, swaps its core with the core of the worker that
// lost least.
static void caller_change_core(struct thread_pool *pool)
{
    int64_t now = now_ns();
    if (now - pool->core_checked_ns < CORE_CHECK_NS) return;
    int64_t lost = atomic_exchange(&pool->ranges[0].lost_ns, 0), least = INT64_MAX;
    int with = 0;
    for (int t = 1; t < pool->threads; t++) {
        int64_t theirs = atomic_exchange(&pool->ranges[t].lost_ns, 0);
        if (theirs < least) least = theirs, with = t;
    }
    if (lost > (now - pool->core_checked_ns) / 8) {
        int core = pool->core[0];
        pool->core[0] = pool->core[with];
        pool->core[with] = core;
        thread_set_core(pool->workers[with - 1].thread, core);
        thread_set_core(pthread_self(), pool->core[0]); // moves the caller now; the next call frees it again
        pthread_setaffinity_np(pthread_self(), sizeof pool->usable, &pool->usable);
    }
    pool->core_checked_ns = now;
}

static void pool_run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_groups,
                     int size)
{
    int n_items = n_groups * size;
    if (pool->threads == 1 || n_items <= 1) {
        for (int i = 0; i < n_items; i++)
            fn(arg, i, 0);
        return;
    }
    INVARIANT(!atomic_load(&pool->left), "a run starts while another has %u items left", atomic_load(&pool->left));
    if (pool->core) caller_change_core(pool);
    pool->fn = fn;
    pool->arg = arg;
    pool->no_alloc = no_alloc_active();
    atomic_store_explicit(&pool->dynamic, order == THREAD_POOL_DYNAMIC, memory_order_relaxed);
    atomic_store(&pool->left, (uint32_t)n_items);
    int ranges = order == THREAD_POOL_DYNAMIC ? 1 : pool->threads;
    for (int t = 0; t < ranges; t++) {
        uint32_t first = (uint32_t)(thread_pool_range(n_groups, t, ranges) * size);
        uint32_t end = (uint32_t)(thread_pool_range(n_groups, t + 1, ranges) * size);
        atomic_store_explicit(&pool->ranges[t].items, range_pack(first, end), memory_order_release);
    }
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers)) futex_wake(&pool->epoch, INT_MAX);
    pool_work(pool, 0);
    for (uint32_t left; (left = atomic_load(&pool->left)) != 0;) {
        if (spin_until_changed(pool, &pool->left, left)) continue;
        atomic_store(&pool->caller_sleeps, true);
        futex_wait(&pool->left, left);
        atomic_store(&pool->caller_sleeps, false);
    }
}

void thread_pool_run(struct thread_pool *pool, enum thread_pool_order order, thread_pool_fn fn, void *arg, int n_items)
{
    pool_run(pool, order, fn, arg, n_items, 1);
}

bool thread_pool_is_awake(const struct thread_pool *pool)
{
    return atomic_load_explicit(&pool->sleepers, memory_order_relaxed) == 0; // a late value costs time only
}

void thread_pool_run_groups(struct thread_pool *pool, thread_pool_fn fn, void *arg, int n_groups, int size)
{
    pool_run(pool, THREAD_POOL_STATIC, fn, arg, n_groups, size);
}

// ---- threads --------------------------------------------------------------------------------------------------------

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct thread_pool *pool = worker->pool;
    for (uint32_t seen = 0;;) {
        if (!spin_until_changed(pool, &pool->epoch, seen)) {
            atomic_fetch_add(&pool->sleepers, 1);
            while (atomic_load(&pool->epoch) == seen)
                futex_wait(&pool->epoch, seen);
            atomic_fetch_sub(&pool->sleepers, 1);
            pool->ranges[worker->index].yielded_ns = now_ns();
        }
        seen = atomic_load(&pool->epoch);
        if (atomic_load(&pool->stop)) return NULL;
        pool_work(pool, worker->index);
    }
}

static enum status workers_start(struct thread_pool *pool)
{
    // Workers block all signals, which belong to the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < pool->threads - 1; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i + 1};
        error = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (error) break;
        pool->started++;
        if (pool->core) thread_set_core(pool->workers[i].thread, pool->core[i + 1]);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "compute thread %d of %d: %s", pool->started + 2, pool->threads,
                       strerror(error));
}

enum status thread_pool_open(int threads, const int *cores, bool spins, struct thread_pool **pool_p)
{
    struct thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    struct thread_range *ranges = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *ranges);
    if (!pool || !ranges) {
        free(pool);
        free(ranges);
        return status_fail(STATUS_EXHAUSTED, "no memory for %d threads", threads);
    }
    memset(pool, 0, sizeof *pool);
    memset(ranges, 0, (size_t)threads * sizeof *ranges);
    pool->threads = threads;
    pool->ranges = ranges;
    pool->workers = mem_alloc_array((size_t)threads, sizeof *pool->workers);
    pool->spins = spins;
    if (cores && threads > 1) pool->core = mem_copy(cores, (size_t)threads * sizeof *cores);
    cores_usable(&pool->usable);
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
    free(pool->ranges);
    free(pool);
}
