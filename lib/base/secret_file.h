// SPDX-License-Identifier: Apache-2.0
// Small files that are read again when they change: certificates, keys, tokens. Any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

// Tells versions of a file apart. All zeros: it cannot be read.
struct file_stamp {
    uint64_t device, inode, size;
    int64_t changed_ns;
};

struct file_stamp file_stamp_get(const char *path);
// True, and *stamp is updated, when the file is another version than *stamp.
bool file_stamp_update(struct file_stamp *stamp, const char *path);

enum { FILE_SECRET_BYTES_MAX = 1 << 20 };

// Reads a file of at most FILE_SECRET_BYTES_MAX; the caller frees *text_p, which ends with a zero byte. `secret`: a
// file that users other than its owner and group may read is refused. INVALID, and what file_open_status() gives.
enum status file_read_small(const char *path, bool secret, char **text_p);
// The only line of a file with a secret: without the white space around it, not empty.
enum status secret_file_read(const char *path, char **secret_p);
