// SPDX-License-Identifier: Apache-2.0
// Marks code that must not allocate: the token loop, where malloc() takes unplanned time and may wait for a lock that
// another thread holds. In builds with a sanitizer (presets dev and tsan) an allocation between begin and end in the
// same thread, in a library too, prints the name of the section and aborts the process. In other builds these calls do
// nothing. Freeing is allowed: the memory of a finished sequence is released in the loop.
#pragma once

#include <stdbool.h>

// Sections may nest. `section` is a string literal, the name that is printed.
void no_alloc_begin(const char *section);
void no_alloc_end(void);
bool no_alloc_active(void);

// Around calls to libraries that allocate (MPI, cuBLASLt). Pass the result of suspend to resume.
int no_alloc_suspend(void);
void no_alloc_resume(int suspended);
