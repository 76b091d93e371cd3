// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_id.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "lib/base/invariant.h"

void batch_id_make(const char *prefix, char id[BATCH_ID_ROOM])
{
    uint64_t random[2];
    INVARIANT(getrandom(random, sizeof random, 0) == sizeof random, "getrandom: %s", strerror(errno));
    snprintf(id, BATCH_ID_ROOM, "%s%016llx%016llx", prefix, (unsigned long long)random[0],
             (unsigned long long)random[1]);
}

bool batch_id_valid(const char *prefix, const char *id)
{
    size_t n = strlen(prefix);
    return strncmp(id, prefix, n) == 0 && strlen(id) == n + BATCH_ID_DIGITS &&
           strspn(id + n, "0123456789abcdef") == BATCH_ID_DIGITS;
}
