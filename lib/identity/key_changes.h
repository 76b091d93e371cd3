// SPDX-License-Identifier: Apache-2.0
// Logs how one version of the key file differs from another, without secrets and their hashes. For identity/ alone.
#pragma once

#include "lib/identity/key_file.h"

enum { KEY_CHANGES_LOGGED = 100 }; // further keys are only counted

// One event for each key that was added, removed or changed, and one with their numbers. Both lists are sorted here.
void key_changes_log(const char *path, const struct api_key **before, size_t n_before, const struct api_key **after,
                     size_t n_after);
