// SPDX-License-Identifier: Apache-2.0
#include "engine/start_signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/launch.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/thread.h"

enum { WATCH_ENDS = SIGUSR2 }; // ends the thread; sent only to it
enum { REPEAT_US = 1000000 };

static pthread_t thread;
static bool watching;
static int kept;        // first signal, or 0; owned by the thread until it is joined
static int64_t kept_us; // its time, owned in the same way

static const char *environment(const char *name)
{
    return getenv(name);
}

bool drain_signal_repeats(int64_t first_us)
{
    return launch_read(environment).launcher != LAUNCHER_NONE && clock_now_us() - first_us < REPEAT_US;
}

static void signal_handle(int signal)
{
    char name[16];
    snprintf(name, sizeof name, "SIG%s", sigabbrev_np(signal));
    if (kept && drain_signal_repeats(kept_us)) return;
    if (kept) {
        log_event(LOG_WARN, "drain_aborted", LOG_FIELD("signal", name), LOG_FIELD("reason", "second signal"));
        log_flush();
        _exit(1);
    }
    kept = signal;
    kept_us = clock_now_us();
    log_event(LOG_INFO, "drain_postponed", LOG_FIELD("signal", name),
              LOG_FIELD("reason", "the node is starting; a second signal ends it immediately"));
}

static void *watch_thread(void *argument)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, WATCH_ENDS);
    int signal;
    while (sigwait(&set, &signal) == 0 && signal != WATCH_ENDS)
        signal_handle(signal);
    return NULL;
}

void start_signals_watch(void)
{
    thread_start(&thread, "signals", watch_thread, NULL);
    watching = true;
}

void start_signals_release(void)
{
    if (!watching) return;
    pthread_kill(thread, WATCH_ENDS);
    pthread_join(thread, NULL);
    watching = false;
    if (kept) kill(getpid(), kept);
}
