// SPDX-License-Identifier: Apache-2.0
// The TLS certificate of a benchmark's server: self-signed, on P-256, for localhost and 127.0.0.1.
#pragma once

#include "lib/base/status.h"

struct certificate_files {
    char *folder, *cert, *key; // owned; PEM files in a private folder
};

enum status certificate_files_create(struct certificate_files *files);
void certificate_files_remove(struct certificate_files *files); // all members may be zero
