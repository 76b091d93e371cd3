// SPDX-License-Identifier: Apache-2.0
// See watchdog.h. The thread reads the clock a few times per timeout instead of being woken by passes: entering and
// leaving cost two stores and one store, and in an idle process the thread wakes a few times a minute.
#include "engine/watchdog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/monotonic_cond.h"

enum { NAP_MAX_MS = 10000 };

struct watchdog {
    pthread_t thread;
    struct roll_call *roll_call; // borrowed
    pthread_mutex_t lock;        // guards stopping
    pthread_cond_t changed;
    bool stopping;
    atomic_int timeout_ms;
    atomic_int_least64_t entered_us; // 0: no pass under way. Read on its own, so relaxed would be enough
    atomic_int rows;                 // of that pass
};

// How long the thread may sleep until it has to look again; 0: the pass has taken too long.
static int time_left_ms(struct watchdog *w, int64_t entered_us)
{
    int timeout_ms = w->timeout_ms;
    int nap_ms = timeout_ms && timeout_ms / 4 < NAP_MAX_MS ? timeout_ms / 4 + 1 : NAP_MAX_MS;
    if (!timeout_ms || !entered_us) return nap_ms;
    int64_t left_us = entered_us + (int64_t)timeout_ms * 1000 - clock_now_us();
    return left_us <= 0 ? 0 : left_us < (int64_t)nap_ms * 1000 ? (int)(left_us / 1000) + 1 : nap_ms;
}

// The pass has timed out. Ends the process unless the pass has ended meanwhile or has no time limit.
static void watchdog_expire(struct watchdog *w, int64_t entered_us)
{
    int rows = w->rows;
    char sentence[ROLL_CALL_SENTENCE_MAX];
    enum roll_call_result result = roll_call_ask(w->roll_call, ROLL_CALL_TIMEOUT_MS, sentence);
    if (w->entered_us != entered_us) return;
    if (rows) {
        log_event(LOG_ERROR, "step_stuck", LOG_FIELD("rows", rows), LOG_FIELD("timeout_ms", (int)w->timeout_ms),
                  LOG_FIELD("reason", sentence));
    } else if (result == ROLL_CALL_SILENT) {
        log_event(LOG_ERROR, "group_stuck", LOG_FIELD("reason", sentence));
    } else {
        atomic_compare_exchange_strong(&w->entered_us, &entered_us, clock_now_us());
        return;
    }
    _exit(1); // not MPI_Abort: another thread is inside MPI. mpirun ends the other ranks
}

static void *watchdog_thread(void *arg)
{
    struct watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        int64_t entered_us = w->entered_us;
        int nap_ms = time_left_ms(w, entered_us);
        if (nap_ms == 0) {
            pthread_mutex_unlock(&w->lock);
            watchdog_expire(w, entered_us);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        monotonic_cond_wait(&w->changed, &w->lock, clock_now_us() + (int64_t)nap_ms * 1000);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct watchdog *watchdog_start(struct roll_call *roll_call, int timeout_ms)
{
    struct watchdog *w = mem_alloc(sizeof *w);
    w->roll_call = roll_call;
    w->timeout_ms = timeout_ms;
    pthread_mutex_init(&w->lock, NULL);
    monotonic_cond_init(&w->changed);
    if (pthread_create(&w->thread, NULL, watchdog_thread, w) != 0) {
        log_event(LOG_ERROR, "watchdog_failed", LOG_FIELD("reason", "no thread can be created"));
        abort();
    }
    return w;
}

void watchdog_stop(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void watchdog_set_timeout(struct watchdog *w, int timeout_ms)
{
    pthread_mutex_lock(&w->lock);
    w->timeout_ms = timeout_ms;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void watchdog_enter(struct watchdog *w, int rows)
{
    atomic_store(&w->rows, rows);
    atomic_store(&w->entered_us, clock_now_us());
}

void watchdog_leave(struct watchdog *w)
{
    atomic_store(&w->entered_us, 0);
}
