// SPDX-License-Identifier: Apache-2.0
// The sanitizers tell of every allocation in the process, those of libraries included.
#include "base/no_alloc.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

// Of the sanitizers' runtime library, whose header gcc does not bring.
int __sanitizer_install_malloc_and_free_hooks(void (*on_alloc)(const volatile void *block, size_t bytes),
                                              void (*on_free)(const volatile void *block));

static _Thread_local int depth;
static _Thread_local const char *stretch;

static void on_alloc(const volatile void *block, size_t bytes)
{
    if (!depth) return;
    depth = 0; // what follows may allocate
    fprintf(stderr, "%zu bytes were allocated within %s, which must not allocate\n", bytes, stretch);
    abort();
}

static void on_free(const volatile void *block)
{
}

static void install(void)
{
    __sanitizer_install_malloc_and_free_hooks(on_alloc, on_free);
}

void no_alloc_begin(const char *what)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    stretch = what;
    depth++;
}

void no_alloc_end(void)
{
    depth--;
}

bool no_alloc_active(void)
{
    return depth > 0;
}

int no_alloc_suspend(void)
{
    int suspended = depth;
    depth = 0;
    return suspended;
}

void no_alloc_resume(int suspended)
{
    depth = suspended;
}

#else

void no_alloc_begin(const char *what)
{
}

void no_alloc_end(void)
{
}

bool no_alloc_active(void)
{
    return false;
}

int no_alloc_suspend(void)
{
    return 0;
}

void no_alloc_resume(int suspended)
{
}

#endif
