// SPDX-License-Identifier: Apache-2.0
// Reads small files that may be replaced while the process runs: certificates, keys, tokens. Any thread may call.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

// Identifies a version of a file. Every member is 0 if the file cannot be read.
struct file_stamp {
    uint64_t device, inode, size;
    int64_t changed_ns;
};

struct file_stamp file_stamp_get(const char *path);
// If the file's version differs from *stamp, updates *stamp and returns true.
bool file_stamp_update(struct file_stamp *stamp, const char *path);

enum { FILE_SECRET_BYTES_MAX = 1 << 20 };

// Reads a file of at most FILE_SECRET_BYTES_MAX. The caller frees *text_p, which ends with a zero byte. If `secret`,
// refuses a file that users other than its owner and group may read. Errors are INVALID and the results of
// file_open_status().
enum status file_read_small(const char *path, bool secret, char **text_p);
// Reads a secret from a file that has one line with one word. White space around the word is ignored. Returns INVALID
// for any other content.
enum status secret_file_read(const char *path, char **secret_p);
