// SPDX-License-Identifier: Apache-2.0
#include "lib/base/monotonic_cond.h"

#include <time.h>

void monotonic_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool monotonic_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us)
{
    if (until_us == INT64_MAX) return pthread_cond_wait(cond, mutex) == 0;
    const struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    return pthread_cond_timedwait(cond, mutex, &until) == 0;
}
