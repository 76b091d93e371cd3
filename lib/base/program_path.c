// SPDX-License-Identifier: Apache-2.0
#include "lib/base/program_path.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

char *program_path(const char *relative)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash) *slash = 0;
    return mem_format("%s/%s", slash ? self : ".", relative);
}
