// SPDX-License-Identifier: Apache-2.0
// The limit on the memory of this process: that of its cgroups (versions 1 and 2). Any thread may call.
#pragma once

#include <stddef.h>

// Returns the bytes that the cgroups of this process allow, or 0 if there is no limit below the machine's memory.
size_t memory_limit_bytes(void);

// Returns the memory in bytes that this process has now and that the system cannot drop: anonymous and shared pages.
size_t memory_used_bytes(void);
