// SPDX-License-Identifier: Apache-2.0
// The watchdog's thread reads the clock a few times per timeout, and passes do not wake it. So entering costs three
// stores and leaving costs one, and in an idle process the thread wakes a few times a minute.
#include "engine/watchdog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"

enum { NAP_MAX_MS = 10000, LATE_MS = 1000 };

enum work { OPEN_ENDED, PASS, SAMPLING, CHECK, CLOSE };

struct watchdog {
    pthread_t thread;
    struct roll_call *roll_call;           // borrowed; NULL for one rank
    const atomic_uint_least64_t *progress; // borrowed
    bool staged;                           // see watchdog_start()
    pthread_mutex_t lock;                  // guards `stopping`
    pthread_cond_t changed;
    bool stopping;
    atomic_int timeout_ms;
    // These members describe the current work and are stored before entered_us. If the thread reads a mix of old and
    // new members, it only wakes too early or too late.
    atomic_int work, rows, own_timeout_ms;
    atomic_int_least64_t entered_us; // 0: no current work

    // State of the thread at its last look, used only by the thread.
    int64_t seen_entered_us, progress_us; // progress_us: the last progress was made at this time or earlier
    uint64_t seen_progress;
    // Sum over all ranks in the last roll call of a pass, and the start of that pass, see group_progressed().
    uint64_t group_progress;
    int64_t group_entered_us;
    bool late; // the thread woke late, because the process was stopped or the machine paused: this is not a hang
};

static int limit_ms(const struct watchdog *w)
{
    return w->work == CHECK || w->work == CLOSE ? w->own_timeout_ms : w->timeout_ms;
}

// Reads the counter and updates w->progress_us, an upper bound of the time of the last progress.
static void look(struct watchdog *w, int64_t entered_us)
{
    uint64_t progress = *w->progress;
    // If the thread woke late, the working thread has not run either.
    if (w->late || (entered_us == w->seen_entered_us && progress != w->seen_progress))
        w->progress_us = clock_now_us();
    else if (entered_us != w->seen_entered_us)
        w->progress_us = entered_us;
    w->late = false;
    w->seen_entered_us = entered_us;
    w->seen_progress = progress;
}

// Returns how long the thread may sleep until its next look, or 0 if the work has timed out.
static int time_left_ms(struct watchdog *w, int64_t entered_us)
{
    int timeout_ms = limit_ms(w);
    int nap_ms = timeout_ms && timeout_ms / 4 < NAP_MAX_MS ? timeout_ms / 4 + 1 : NAP_MAX_MS;
    if (!timeout_ms || !entered_us) return nap_ms;
    int64_t left_us = w->progress_us + (int64_t)timeout_ms * 1000 - clock_now_us();
    return left_us <= 0 ? 0 : left_us < (int64_t)nap_ms * 1000 ? (int)(left_us / 1000) + 1 : nap_ms;
}

static enum roll_call_result find_cause(const struct watchdog *w, int work, int timeout_ms,
                                        char sentence[ROLL_CALL_SENTENCE_MAX])
{
    if (work == SAMPLING) {
        snprintf(sentence, ROLL_CALL_SENTENCE_MAX, "sampling on the host makes no progress");
        return ROLL_CALL_COMPLETE;
    }
    if (work == CLOSE) { // no roll call: other ranks may have closed already
        snprintf(sentence, ROLL_CALL_SENTENCE_MAX, "closing the model makes no progress: a device or a thread hangs");
        return ROLL_CALL_COMPLETE;
    }
    if (w->roll_call) return roll_call_ask(w->roll_call, roll_call_timeout_for(timeout_ms), sentence);
    snprintf(sentence, ROLL_CALL_SENTENCE_MAX, "the pass makes no progress: a device or a thread hangs");
    return ROLL_CALL_COMPLETE;
}

// Returns false if no rank of the group has made progress since the last roll call of the same pass. Otherwise the pass
// gets its whole time again, because a rank may wait for a slow stage.
static bool group_progressed(struct watchdog *w, int64_t entered_us)
{
    const uint64_t progress = roll_call_progress(w->roll_call);
    const int64_t now_us = clock_now_us();
    if (entered_us == w->group_entered_us && progress == w->group_progress) return false;
    w->group_progress = progress;
    if (atomic_compare_exchange_strong(&w->entered_us, &entered_us, now_us)) w->group_entered_us = now_us;
    return true;
}

// Handles work that has timed out. Ends the process unless the work has made progress meanwhile or may take any time.
static void watchdog_expire(struct watchdog *w, int64_t entered_us)
{
    int work = w->work, rows = w->rows, timeout_ms = limit_ms(w);
    char sentence[ROLL_CALL_SENTENCE_MAX];
    enum roll_call_result result = find_cause(w, work, timeout_ms, sentence);
    if (w->entered_us != entered_us || *w->progress != w->seen_progress) return;
    if (work == PASS && w->staged && result != ROLL_CALL_SILENT && group_progressed(w, entered_us)) return;
    if (work == PASS || work == SAMPLING) {
        log_event(LOG_ERROR, "step_stuck", LOG_FIELD("rows", rows), LOG_FIELD("timeout_ms", timeout_ms),
                  LOG_FIELD("reason", sentence));
    } else if (work == CHECK) {
        log_event(LOG_ERROR, "check_stuck", LOG_FIELD("timeout_ms", timeout_ms), LOG_FIELD("reason", sentence));
    } else if (work == CLOSE) {
        log_event(LOG_ERROR, "close_stuck", LOG_FIELD("timeout_ms", timeout_ms), LOG_FIELD("reason", sentence));
    } else if (result == ROLL_CALL_SILENT) {
        log_event(LOG_ERROR, "group_stuck", LOG_FIELD("reason", sentence));
    } else {
        atomic_compare_exchange_strong(&w->entered_us, &entered_us, clock_now_us());
        return;
    }
    log_flush();
    _exit(1); // not MPI_Abort, because another thread is inside MPI; mpirun ends the other ranks
}

static void *watchdog_thread(void *arg)
{
    struct watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        int64_t entered_us = w->entered_us;
        look(w, entered_us);
        int nap_ms = time_left_ms(w, entered_us);
        if (nap_ms == 0) {
            pthread_mutex_unlock(&w->lock);
            watchdog_expire(w, entered_us);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        int64_t until_us = clock_now_us() + (int64_t)nap_ms * 1000;
        monotonic_cond_wait(&w->changed, &w->lock, until_us);
        w->late = clock_now_us() > until_us + LATE_MS * 1000;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct watchdog *watchdog_start(struct roll_call *roll_call, const atomic_uint_least64_t *progress, bool staged)
{
    struct watchdog *w = mem_alloc(sizeof *w);
    w->roll_call = roll_call;
    w->progress = progress;
    w->staged = staged;
    pthread_mutex_init(&w->lock, NULL);
    monotonic_cond_init(&w->changed);
    thread_start(&w->thread, "watchdog", watchdog_thread, w);
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

static void thread_wake(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void watchdog_set_timeout(struct watchdog *w, int timeout_ms)
{
    w->timeout_ms = timeout_ms;
    thread_wake(w);
}

static void work_enter(struct watchdog *w, enum work work)
{
    atomic_store(&w->work, work);
    atomic_store(&w->entered_us, clock_now_us());
}

void watchdog_enter_pass(struct watchdog *w, int rows)
{
    atomic_store(&w->rows, rows);
    work_enter(w, PASS);
}

void watchdog_enter_sampling(struct watchdog *w)
{
    work_enter(w, SAMPLING);
}

static void timed_work_enter(struct watchdog *w, enum work work, int timeout_ms)
{
    atomic_store(&w->own_timeout_ms, timeout_ms);
    work_enter(w, work);
    thread_wake(w); // the thread may sleep longer than this timeout
}

void watchdog_enter_check(struct watchdog *w, int timeout_ms)
{
    timed_work_enter(w, CHECK, timeout_ms);
}

void watchdog_enter_close(struct watchdog *w, int timeout_ms)
{
    timed_work_enter(w, CLOSE, timeout_ms);
}

void watchdog_enter_open_ended(struct watchdog *w)
{
    work_enter(w, OPEN_ENDED);
}

void watchdog_leave(struct watchdog *w)
{
    atomic_store(&w->entered_us, 0);
}
