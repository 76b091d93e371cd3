// SPDX-License-Identifier: Apache-2.0
#include "lib/base/descriptors.h"

#include <sys/resource.h>

void descriptors_raise(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return;
    rlim_t wanted = files.rlim_max < DESCRIPTORS_MAX ? files.rlim_max : DESCRIPTORS_MAX;
    if (files.rlim_cur >= wanted) return;
    files.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &files);
}

int descriptors_share(int sixteenths, int max)
{
    struct rlimit files = {.rlim_cur = DESCRIPTORS_MAX};
    getrlimit(RLIMIT_NOFILE, &files);
    rlim_t share = files.rlim_cur / 16 * (rlim_t)sixteenths;
    return share < (rlim_t)max ? (int)share : max;
}
