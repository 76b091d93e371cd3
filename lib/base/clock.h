// SPDX-License-Identifier: Apache-2.0
// Monotonic time in microseconds. Code with timed behaviour gets `now_us` as an argument, so that tests can set the
// time. Any thread may call. clock.c has only this function, so that forepack-sim can replace it by its virtual clock
// at link time.
#pragma once

#include <stdint.h>

int64_t clock_now_us(void);
