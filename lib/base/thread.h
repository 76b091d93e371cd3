// SPDX-License-Identifier: Apache-2.0
// Starting threads. The main thread of a program handles signals: a new thread blocks all signals but those of faults
// (SIGSEGV and others), which the system delivers to the thread that caused them; their handlers flush the log.
#pragma once

#include <pthread.h>

// Returns 0 or an error number, as pthread_create().
int thread_create(pthread_t *thread, void *(*run)(void *), void *arg);
// stack_bytes: size of the stack, for deep recursion. The system allocates a page of it at the first access.
int thread_create_with_stack(pthread_t *thread, size_t stack_bytes, void *(*run)(void *), void *arg);

// For threads that the process cannot do without: on failure logs thread_start_failed with `name` and aborts.
void thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);
