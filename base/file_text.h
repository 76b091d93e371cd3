// SPDX-License-Identifier: Apache-2.0
// Reads the whole of a file that a user named. Any thread.
#pragma once

#include <stddef.h>

#include "base/status.h"

// *text_p [*n_bytes_p] and a zero byte after it; the caller frees it. NOT_FOUND; DATA: not a regular file, or longer
// than max_bytes; INTERNAL: it cannot be read.
enum status file_text_read(const char *path, size_t max_bytes, char **text_p, size_t *n_bytes_p);
