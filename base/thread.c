// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

int thread_create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    int error = thread_create(thread, run, arg);
    if (!error) return;
    log_event(LOG_ERROR, "thread_start_failed", LOG_FIELD("thread", name), LOG_FIELD("reason", strerror(error)));
    abort();
}
