// SPDX-License-Identifier: Apache-2.0
// Starting threads. Signals are for the main thread of a program: a new thread blocks all but those of faults, which
// the system delivers to the thread that caused them and whose handlers flush the log.
#pragma once

#include <pthread.h>

// Returns 0 or an error number, as pthread_create().
int thread_create(pthread_t *thread, void *(*run)(void *), void *arg);
// stack_bytes: more than usual, for deep recursion; only what is used takes memory.
int thread_create_with_stack(pthread_t *thread, size_t stack_bytes, void *(*run)(void *), void *arg);

// For threads without which the process is of no use: logs thread_start_failed and aborts if there can be none. `name`
// is for that event.
void thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);
