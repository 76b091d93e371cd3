// SPDX-License-Identifier: Apache-2.0
// Writes a tar archive (POSIX ustar) of regular files that are in memory.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TAR_NAME_BYTES = 100 }; // longest name

// Adds a file of mode 0600. Longer names are cut. `time_s` is the Unix time of its last change. Errors of `out` stay in
// its error indicator (ferror()).
void tar_add(FILE *out, const char *name, const void *data, size_t size, int64_t time_s);
void tar_end(FILE *out);
