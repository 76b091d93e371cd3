// SPDX-License-Identifier: Apache-2.0
// Starts threads. The main thread of a program handles signals, so a new thread blocks all signals except faults
// (SIGSEGV and others). The system delivers a fault to the thread that caused it, and the fault's handler flushes the
// log.
#pragma once

#include <pthread.h>

// Returns 0 or an error number, like pthread_create().
int thread_create(pthread_t *thread, void *(*run)(void *), void *arg);
// stack_bytes is the size of the stack, for deep recursion. The system allocates each page of it at the first access.
int thread_create_with_stack(pthread_t *thread, size_t stack_bytes, void *(*run)(void *), void *arg);

// Starts a thread that the process cannot do without. On failure, logs thread_start_failed with `name` and aborts.
void thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);
