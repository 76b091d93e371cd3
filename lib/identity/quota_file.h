// SPDX-License-Identifier: Apache-2.0
// The file that keeps the use of daily quotas (tokens_per_day) over a restart. A line has the id and tenant of a key
// and the tokens that it has used. The last line has a hash of the lines before it.
//
//   forepack-quotas 1 1793026800000
//   prod-1 acme 81234
//   sha256:9f86d0...0f00a08
//
// Thread-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/identity/key_file.h"

struct quota {
    char id[KEY_ID_BYTES + 1], tenant[KEY_TENANT_BYTES + 1];
    double used; // tokens of the last day
};

struct quota_list {
    struct quota *quotas; // [n] owned
    size_t n;
    int64_t saved_ms; // wall clock, in ms since 1970, for which `used` holds
};
void quota_list_fini(struct quota_list *list);

// Reads the file. An absent file gives an empty list. Returns INVALID for a file that is damaged, cut off or cannot be
// read. The error message names the file.
enum status quota_file_read(const char *path, struct quota_list *list_p);

// Replaces the file in one step. After a failure, which the error message describes, the earlier file is unchanged.
enum status quota_file_write(const char *path, const struct quota_list *list);
