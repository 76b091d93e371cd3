// SPDX-License-Identifier: Apache-2.0
// Logs the differences between two versions of the key file, without secrets and their hashes. Private to identity/.
#pragma once

#include "lib/identity/key_file.h"

enum { KEY_CHANGES_LOGGED = 100 }; // further keys are only counted

// Logs one event for each of the first KEY_CHANGES_LOGGED keys that were added, removed or changed, and one event with
// the totals. Sorts both lists.
void key_changes_log(const char *path, const struct api_key **before, size_t n_before, const struct api_key **after,
                     size_t n_after);
