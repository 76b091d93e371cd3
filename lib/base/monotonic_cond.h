// SPDX-License-Identifier: Apache-2.0
// A condition variable with time limits on the clock of clock_now_us(), so that setting the wall clock neither
// shortens nor prolongs a wait. Signal and destroy it with the pthread functions.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

void monotonic_cond_init(pthread_cond_t *cond);

// pthread_cond_wait with a time limit: `until_us` on clock_now_us(), INT64_MAX for none. False once the limit has
// passed. As with every condition variable, true does not mean that the awaited condition holds.
bool monotonic_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us);
