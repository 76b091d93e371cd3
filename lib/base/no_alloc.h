// SPDX-License-Identifier: Apache-2.0
// Marks code that must not allocate: the token loop. malloc() takes unplanned time there, and may wait for a lock that
// another thread holds. In builds with a sanitizer (presets dev and tsan), an allocation between begin and end prints
// the name of the section that began last and aborts the process. This includes allocations by libraries in the same
// thread. In other builds these calls do nothing. Freeing is allowed: the loop releases the memory of finished
// sequences.
#pragma once

#include <stdbool.h>

// Begin and end a section. Sections may nest. `section` is a string literal, the name that is printed.
void no_alloc_begin(const char *section);
void no_alloc_end(void);
bool no_alloc_active(void);

// Suspend and resume the check around calls to libraries that allocate (MPI, cuBLASLt). Pass the result of suspend to
// resume.
int no_alloc_suspend(void);
void no_alloc_resume(int suspended);
