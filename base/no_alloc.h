// SPDX-License-Identifier: Apache-2.0
// Stretches of code that must not allocate: the token loop, where a call to the heap costs time that nobody planned and
// may wait for a lock that another thread holds. In builds with a sanitizer (presets dev and tsan) any allocation
// between begin and end in the same thread, by whomever, ends the process with a sentence and the stretch's name.
// Elsewhere these calls do nothing. Freeing is allowed: a sequence that ends gives its memory back.
#pragma once

#include <stdbool.h>

// Stretches may nest; `what` names the innermost, a literal.
void no_alloc_begin(const char *what);
void no_alloc_end(void);
bool no_alloc_active(void);

// Around calls to libraries that allocate as they see fit (MPI): returns what resume needs.
int no_alloc_suspend(void);
void no_alloc_resume(int suspended);
