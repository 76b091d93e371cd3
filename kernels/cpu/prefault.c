// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/prefault.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/mem.h"

enum { SMALL_PAGE_BYTES = 4096, LOWEST_PRIORITY = 19 };

struct prefault {
    pthread_t thread;
    atomic_bool stop;
    struct prefault_range *ranges;
    int n_ranges;
};

// Makes the kernel provide the pages of [from, end) by writes that change nothing. madvise(MADV_POPULATE_WRITE) would
// hold the address space's lock meanwhile, at the lowest priority. ThreadSanitizer would report the plain writes that
// other threads make at the same time.
__attribute__((no_sanitize("thread"))) static void pages_touch(char *from, const char *end)
{
    for (; from < end; from += SMALL_PAGE_BYTES)
        __atomic_fetch_or(from, 0, __ATOMIC_RELAXED);
}

static void pages_read(const char *from, const char *end)
{
    for (; from < end; from += SMALL_PAGE_BYTES)
        (void)*(const volatile char *)from;
}

// Touches the pages of a range. Returns false if the thread has been told to stop.
static bool range_touch(const struct prefault *p, const struct prefault_range *range)
{
    for (size_t at = 0; at < range->bytes; at += HUGE_PAGE_BYTES) {
        const size_t rest = range->bytes - at, bytes = rest < HUGE_PAGE_BYTES ? rest : HUGE_PAGE_BYTES;
        for (int i = 0; i < range->regions; i++) {
            if (atomic_load(&p->stop)) return false;
            char *from = (char *)range->start + (size_t)i * range->bytes + at;
            if (range->read_only)
                pages_read(from, from + bytes);
            else
                pages_touch(from, from + bytes);
        }
    }
    return true;
}

static void *prefault_main(void *arg)
{
    const struct prefault *p = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY); // on Linux only this thread's priority
    for (int i = 0; i < p->n_ranges && range_touch(p, &p->ranges[i]); i++)
        continue;
    return NULL;
}

struct prefault *prefault_start(const struct prefault_range *ranges, int n)
{
    struct prefault *p = mem_alloc(sizeof *p);
    p->ranges = mem_copy(ranges, (size_t)n * sizeof *ranges);
    p->n_ranges = n;
    sigset_t all, before; // the thread blocks all signals, which are for other threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&p->thread, NULL, prefault_main, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return p;
    free(p->ranges);
    free(p);
    return NULL;
}

void prefault_stop(struct prefault *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    free(p->ranges);
    free(p);
}
