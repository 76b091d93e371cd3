// SPDX-License-Identifier: Apache-2.0
// Files that a user named. Any thread.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

// Of an open() that failed with `error`: NOT_FOUND; INTERNAL where another attempt may succeed; else INVALID, such as
// for a file that may not be read.
enum status file_open_status(int error);

// Reads the whole file: *text_p [*n_bytes_p] and a zero byte after it, which the caller frees. Besides what
// file_open_status() gives: DATA if it is no regular file or has more than max_bytes, INTERNAL if reading fails.
enum status file_text_read(const char *path, size_t max_bytes, char **text_p, size_t *n_bytes_p);
