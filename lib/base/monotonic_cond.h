// SPDX-License-Identifier: Apache-2.0
// A condition variable with time limits on the clock of clock_now_us(). Setting the wall clock neither shortens nor
// prolongs a wait. Signal and destroy it with the pthread functions.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

void monotonic_cond_init(pthread_cond_t *cond);

// Waits like pthread_cond_wait, but until the time `until_us` on clock_now_us() (INT64_MAX: no limit). Returns false
// once the limit has passed. As with every condition variable, true does not mean that the awaited condition holds.
bool monotonic_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us);
