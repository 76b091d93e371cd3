// SPDX-License-Identifier: Apache-2.0
// Tells when the certificates of a configured file expire, and follows changes of the file. One thread at a time.
#pragma once

#include <stdint.h>

#include "lib/base/secret_file.h"

struct certificate_time {
    const char *option, *path; // borrowed; name of the option that names the file
    struct file_stamp stamp;   // version of the file that was read last
    int64_t expires_s;         // Unix time at which the first certificate of the file expires; 0: unknown
};

// Reads the file if it has changed since the last call. A file that cannot be used leaves `expires_s` as it is, because
// the certificate that was read before stays in use.
void certificate_time_update(struct certificate_time *time);
