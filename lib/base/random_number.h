// SPDX-License-Identifier: Apache-2.0
// Random numbers for ids and seeds. A thread reads the kernel's numbers in blocks, because a request needs several and
// a system call costs more than the rest of an id. Not for keys and secrets. Not for a child of fork() that does not
// call exec: it would repeat its parent's numbers. Any thread may call.
#pragma once

#include <stdint.h>

uint64_t random_number(void);
