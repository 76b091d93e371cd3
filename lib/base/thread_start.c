// SPDX-License-Identifier: Apache-2.0
// thread_start() of thread.h has its own file because it logs, and the log's own thread needs only thread_create().
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/thread.h"

void thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    int error = thread_create(thread, run, arg);
    if (!error) return;
    log_event(LOG_ERROR, "thread_start_failed", LOG_FIELD("thread", name), LOG_FIELD("reason", strerror(error)));
    abort();
}
