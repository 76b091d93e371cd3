// SPDX-License-Identifier: Apache-2.0
// Uses the allocation hooks of the sanitizers, which see every allocation of the process, also by libraries.
#include "lib/base/no_alloc.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

// Declared here because gcc does not install the header of the sanitizers' runtime library.
int __sanitizer_install_malloc_and_free_hooks(void (*on_alloc)(const volatile void *block, size_t bytes),
                                              void (*on_free)(const volatile void *block));

static _Thread_local int depth;
static _Thread_local const char *current_section;

static void no_alloc_check(const volatile void *block, size_t bytes)
{
    if (!depth) return;
    depth = 0; // fprintf may allocate
    fprintf(stderr, "%zu bytes were allocated within %s, which must not allocate\n", bytes, current_section);
    abort();
}

static void no_alloc_ignore_free(const volatile void *block)
{
}

static void no_alloc_install_hooks(void)
{
    __sanitizer_install_malloc_and_free_hooks(no_alloc_check, no_alloc_ignore_free);
}

void no_alloc_begin(const char *section)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, no_alloc_install_hooks);
    current_section = section;
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

void no_alloc_begin(const char *section)
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
