// SPDX-License-Identifier: Apache-2.0
// Reads files that a user named. Any thread may call.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

// Returns the status for an open() that failed with `error`: NOT_FOUND if there is no file, INTERNAL if another attempt
// may succeed, else INVALID (for example, no read permission).
enum status file_open_status(int error);

// Reads the whole file into *text_p [*n_bytes_p], with a zero byte after it. The caller frees the text. Returns DATA if
// the file is not a regular file or has more than max_bytes, INTERNAL if reading fails, or a result of
// file_open_status().
enum status file_text_read(const char *path, size_t max_bytes, char **text_p, size_t *n_bytes_p);
