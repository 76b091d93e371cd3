// SPDX-License-Identifier: Apache-2.0
#include "lib/base/thread.h"

#include <signal.h>

// Creates a thread. `attributes` NULL means the default attributes.
static int create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(thread, attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int thread_create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    return create(thread, NULL, run, arg);
}

int thread_create_with_stack(pthread_t *thread, size_t stack_bytes, void *(*run)(void *), void *arg)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int error = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (!error) error = create(thread, &attributes, run, arg);
    pthread_attr_destroy(&attributes);
    return error;
}
