// SPDX-License-Identifier: Apache-2.0
// See watchdog.h. The thread looks a few times per limit instead of being told of every pass: entering and leaving
// cost one store each, and an idle process is woken a few times a minute at most.
#include "engine/watchdog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { NAP_MS = 10000 };

struct watchdog {
    pthread_t thread;
    struct roll *roll;    // borrowed
    pthread_mutex_t lock; // guards stopping
    pthread_cond_t changed;
    bool stopping;
    atomic_int limit_ms;
    atomic_int_least64_t entered_us; // 0: no pass under way. Stands alone, so relaxed would do
    atomic_int rows;                 // of that pass
};

// What is left of the time, at most a nap; 0: it is over.
static int left_ms(struct watchdog *dog, int64_t entered_us)
{
    int limit_ms = dog->limit_ms, nap_ms = limit_ms && limit_ms / 4 < NAP_MS ? limit_ms / 4 + 1 : NAP_MS;
    if (!limit_ms || !entered_us) return nap_ms;
    int64_t left_us = entered_us + (int64_t)limit_ms * 1000 - clock_now_us();
    return left_us <= 0 ? 0 : left_us < (int64_t)nap_ms * 1000 ? (int)(left_us / 1000) + 1 : nap_ms;
}

static void bite(struct watchdog *dog, int64_t entered_us)
{
    int rows = dog->rows;
    char sentence[ROLL_SENTENCE_MAX];
    enum roll_result result = roll_call(dog->roll, ROLL_PATIENCE_MS, sentence);
    if (dog->entered_us != entered_us) return; // it came to an end after all
    if (rows) {
        log_error("step_stuck rows=%d limit_ms=%d: %s; ending the group", rows, dog->limit_ms, sentence);
    } else if (result == ROLL_SILENT) {
        log_error("group_stuck: %s; ending the group", sentence);
    } else {
        atomic_compare_exchange_strong(&dog->entered_us, &entered_us, clock_now_us());
        return;
    }
    _exit(1); // not MPI_Abort: another thread is inside MPI. mpirun ends the other ranks
}

static void *watch(void *arg)
{
    struct watchdog *dog = arg;
    pthread_mutex_lock(&dog->lock);
    while (!dog->stopping) {
        int64_t entered_us = dog->entered_us;
        int nap_ms = left_ms(dog, entered_us);
        if (nap_ms == 0) {
            pthread_mutex_unlock(&dog->lock);
            bite(dog, entered_us);
            pthread_mutex_lock(&dog->lock);
            continue;
        }
        int64_t until_us = clock_now_us() + (int64_t)nap_ms * 1000;
        struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
        pthread_cond_timedwait(&dog->changed, &dog->lock, &until);
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

struct watchdog *watchdog_start(struct roll *roll, int limit_ms)
{
    struct watchdog *dog = mem_alloc(sizeof *dog);
    dog->roll = roll;
    dog->limit_ms = limit_ms;
    pthread_mutex_init(&dog->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&dog->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&dog->thread, NULL, watch, dog) != 0) {
        log_error("watchdog: no thread to be had");
        abort();
    }
    return dog;
}

void watchdog_stop(struct watchdog *dog)
{
    pthread_mutex_lock(&dog->lock);
    dog->stopping = true;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
    pthread_join(dog->thread, NULL);
    pthread_cond_destroy(&dog->changed);
    pthread_mutex_destroy(&dog->lock);
    free(dog);
}

void watchdog_set_timeout(struct watchdog *dog, int limit_ms)
{
    pthread_mutex_lock(&dog->lock);
    dog->limit_ms = limit_ms;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
}

void watchdog_enter(struct watchdog *dog, int rows)
{
    atomic_store(&dog->rows, rows);
    atomic_store(&dog->entered_us, clock_now_us());
}

void watchdog_leave(struct watchdog *dog)
{
    atomic_store(&dog->entered_us, 0);
}
