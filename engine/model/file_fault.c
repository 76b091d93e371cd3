// SPDX-License-Identifier: Apache-2.0
#include "engine/model/file_fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log_writer.h"

enum { WATCHED_MAX = 64 }; // checkpoints beyond this number are not watched

static _Atomic(const struct safetensors *) watched[WATCHED_MAX];
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *file_at(const void *address)
{
    for (int i = 0; i < WATCHED_MAX; i++) {
        const struct safetensors *st = atomic_load(&watched[i]);
        const char *file = st ? safetensors_file_at(st, address) : NULL;
        if (file) return file;
    }
    return NULL;
}

static void put(const char *text)
{
    log_write_stderr(text, strlen(text));
}

// A fault recurs when this handler returns, and then reaches the earlier handler.
static void on_fault(int number, siginfo_t *info, void *context)
{
    const char *file = info->si_code > 0 ? file_at(info->si_addr) : NULL;
    if (!file) {
        sigaction(number, &before, NULL);
        if (info->si_code <= 0) raise(number);
        return;
    }
    log_flush();
    put(program_invocation_short_name);
    put(": ");
    put(file);
    put(": a part of the file cannot be read: it was truncated while it was loaded, or its disk fails\n");
    _exit(status_exit_code(STATUS_DATA));
}

static void handler_install(void)
{
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK}, &before);
}

void file_fault_watch(const struct safetensors *st)
{
    pthread_once(&once, handler_install);
    for (int i = 0; i < WATCHED_MAX; i++) {
        const struct safetensors *none = NULL;
        if (atomic_compare_exchange_strong(&watched[i], &none, st)) return;
    }
}

void file_fault_unwatch(const struct safetensors *st)
{
    for (int i = 0; i < WATCHED_MAX; i++) {
        const struct safetensors *same = st;
        if (atomic_compare_exchange_strong(&watched[i], &same, NULL)) return;
    }
}
