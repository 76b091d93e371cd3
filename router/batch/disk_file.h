// SPDX-License-Identifier: Apache-2.0
// Writes to files with the errors of a full disk told apart.
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "lib/base/status.h"

// Returns EXHAUSTED if errno says that the disk, a quota or a limit of the process is full, else INTERNAL. The message
// starts with `what`.
enum status disk_fail(const char *what);
// Writes all bytes at the file's position.
enum status disk_write(int fd, const char *bytes, size_t size);
// Replaces `path` by the JSON of `object` in one step (lib/base/new_file.h).
enum status disk_save_json(const char *path, const json_t *object);
