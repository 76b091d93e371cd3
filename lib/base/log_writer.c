// SPDX-License-Identifier: Apache-2.0
// See log_writer.h. The ring has units of UNIT_BYTES. A producer reserves the units of its line by advancing `head`,
// copies the line, and then publishes its length in the first unit. The writer removes lines in order, clears their
// lengths and advances `tail`. A producer never waits for another producer: an interrupted producer delays only the
// writer. A line wakes a sleeping writer. After that, the writer looks for lines every COLLECT_US without being woken,
// so that a process that logs each request pays one wake-up and one write(2) for many lines.
#include "lib/base/log_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/thread.h"

enum { UNIT_BYTES = 128, UNITS = LOG_RING_BYTES / UNIT_BYTES, COLLECT_US = 2000 };

static char ring[LOG_RING_BYTES];
static _Atomic uint32_t line_bytes[UNITS]; // length of the line that starts in the unit; 0: no line, or not yet copied
static _Atomic uint64_t head, tail;        // numbers of units reserved and written since the start
static _Atomic uint64_t dropped, untold;   // numbers of lines; untold: not yet reported by tell_dropped_fn
static atomic_bool awake;                  // the writer will look for lines without being woken
static sem_t queued;                       // posted to wake the writer
static sem_t started;                      // posted once the thread runs
static void (*tell_dropped_fn)(uint64_t lines);
static atomic_bool running;
static _Thread_local bool is_writer;

// --- standard error

static bool wait_writable(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&out, 1, -1) >= 0 || errno == EINTR;
}

void log_write_stderr(const char *bytes, size_t n)
{
    while (n) {
        ssize_t written = write(STDERR_FILENO, bytes, n);
        if (written < 0 && (errno == EINTR || (errno == EAGAIN && wait_writable()))) continue;
        if (written <= 0) return;
        bytes += written;
        n -= (size_t)written;
    }
}

// --- the ring

static uint64_t units_of(size_t n)
{
    return (n + UNIT_BYTES - 1) / UNIT_BYTES;
}

// Reserves units. Returns the number of units in the ring with them, or 0 if the ring is full. If `at` is stale, the
// difference is negative and the exchange fails.
static int64_t ring_reserve(uint64_t units, uint64_t *at_p)
{
    uint64_t at = atomic_load(&head);
    int64_t used;
    do {
        used = (int64_t)(at + units - atomic_load(&tail));
        if (used > UNITS) return 0;
    } while (!atomic_compare_exchange_weak(&head, &at, at + units));
    *at_p = at;
    return used;
}

static void ring_copy_in(uint64_t at, const char *line, size_t n)
{
    size_t from = at % UNITS * UNIT_BYTES, first = LOG_RING_BYTES - from < n ? LOG_RING_BYTES - from : n;
    memcpy(ring + from, line, first);
    memcpy(ring, line + first, n - first);
}

static void ring_copy_out(uint64_t at, char *line, size_t n)
{
    size_t from = at % UNITS * UNIT_BYTES, first = LOG_RING_BYTES - from < n ? LOG_RING_BYTES - from : n;
    memcpy(line, ring + from, first);
    memcpy(line + first, ring, n - first);
}

// Wakes the writer if it sleeps, or if it must not wait for more lines.
static void writer_wake(bool urgent)
{
    if (!atomic_exchange(&awake, true) || urgent) sem_post(&queued);
}

void log_writer_put(const char *line, size_t n)
{
    uint64_t at, units = units_of(n);
    if (!atomic_load_explicit(&running, memory_order_relaxed) || is_writer) {
        log_write_stderr(line, n);
        return;
    }
    int64_t used = ring_reserve(units, &at);
    if (used) {
        ring_copy_in(at, line, n);
        atomic_store_explicit(&line_bytes[at % UNITS], (uint32_t)n, memory_order_release);
        writer_wake(used > UNITS / 2 && used - (int64_t)units <= UNITS / 2);
    } else {
        atomic_fetch_add(&dropped, 1);
        writer_wake(atomic_fetch_add(&untold, 1) == 0);
    }
}

uint64_t log_lines_dropped(void)
{
    return atomic_load(&dropped);
}

// --- the thread

// Copies whole lines, at most PIPE_BUF bytes in all, and returns the number of their units.
static uint64_t ring_take(char bytes[PIPE_BUF], size_t *n_p)
{
    uint64_t from = atomic_load_explicit(&tail, memory_order_relaxed), at = from;
    uint32_t n;
    for (*n_p = 0; at - from < UNITS; at += units_of(n)) {
        n = atomic_load_explicit(&line_bytes[at % UNITS], memory_order_acquire);
        if (!n || *n_p + n > PIPE_BUF) break;
        ring_copy_out(at, bytes + *n_p, n);
        atomic_store_explicit(&line_bytes[at % UNITS], 0, memory_order_relaxed);
        *n_p += n;
    }
    return at - from;
}

// Reports the dropped lines once all lines before *place_p are written. *place_p is 0 if no line was dropped.
static void tell_dropped(uint64_t *place_p)
{
    if (!*place_p && atomic_load(&untold)) *place_p = atomic_load(&head);
    if (!*place_p || atomic_load(&tail) < *place_p) return;
    uint64_t lines = atomic_load(&untold);
    tell_dropped_fn(lines);
    atomic_fetch_sub(&untold, lines); // last, because log_flush() waits for it to become 0
    *place_p = 0;
}

// Writes all lines in the ring. Returns false if there were none.
static bool ring_write(uint64_t *place_p)
{
    char bytes[PIPE_BUF];
    size_t n;
    bool any = false;
    for (uint64_t units; (units = ring_take(bytes, &n)); any = true) {
        log_write_stderr(bytes, n);
        atomic_fetch_add(&tail, units);
        tell_dropped(place_p);
    }
    tell_dropped(place_p);
    return any;
}

// Sleeps for COLLECT_US, or until the writer is woken.
static void lines_collect(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += COLLECT_US * 1000;
    if (until.tv_nsec >= 1000000000) until = (struct timespec){until.tv_sec + 1, until.tv_nsec - 1000000000};
    sem_clockwait(&queued, CLOCK_MONOTONIC, &until);
}

static void *writer_thread(void *arg)
{
    uint64_t place = 0;
    is_writer = true;
    sem_post(&started);
    for (;;) {
        while (sem_wait(&queued) != 0)
            continue;
        do {
            while (ring_write(&place))
                lines_collect();
            atomic_exchange(&awake, false); // orders the next look at the ring after all lines that woke nobody
        } while (ring_write(&place));
    }
    return NULL;
}

// --- the end of the process

void log_flush(void)
{
    if (!running || is_writer) return;
    uint64_t end = atomic_load(&head);
    for (int ms = 0; ms < LOG_FLUSH_MS && (atomic_load(&tail) < end || atomic_load(&untold)); ms++)
        poll(NULL, 0, 1);
}

static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
enum { N_FATAL = sizeof fatal / sizeof *fatal };
static struct sigaction before[N_FATAL];

// Flushes the log and restores the previous handler. A fault recurs when this handler returns; a signal sent by a
// process does not.
static void on_fatal(int number, siginfo_t *info, void *context)
{
    log_flush();
    for (int i = 0; i < N_FATAL; i++)
        if (fatal[i] == number) sigaction(number, &before[i], NULL);
    if (info->si_code <= 0) raise(number);
}

static void after_fork(void)
{
    running = false;
}

void log_writer_start(void (*dropped_fn)(uint64_t lines))
{
    pthread_t thread;
    if (running || sem_init(&queued, 0, 0) != 0 || sem_init(&started, 0, 0) != 0) return;
    tell_dropped_fn = dropped_fn;
    running = thread_create(&thread, writer_thread, NULL) == 0;
    if (!running) return;
    // Wait until the thread runs: a starting thread may hold a lock of the allocator, and a child forked in that moment
    // would wait for the lock for ever.
    while (sem_wait(&started) != 0)
        continue;
    pthread_detach(thread);
    pthread_atfork(NULL, NULL, after_fork);
    atexit(log_flush);
    for (int i = 0; i < N_FATAL; i++)
        sigaction(fatal[i], &(struct sigaction){.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK},
                  &before[i]);
}
