// SPDX-License-Identifier: Apache-2.0
// Test data: small sets in tests/data of the repository, larger ones in the folder FOREPACK_DATA, which may be absent.
// Both have the same layout (tests/data/README.md). A program whose last argument is "data" tests only the larger sets.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "tests/suite.h"

// Returns a path, which the caller frees. If the file is absent, the test fails later and names it.
static inline char *repository_data(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/tests/data/%s", source ? source : ".", name);
}

static inline char *external_data(const char *name)
{
    const char *data = getenv("FOREPACK_DATA");
    return mem_format("%s/%s", data ? data : "", name);
}

static inline bool external_data_is_here(void)
{
    char *path = external_data("golden");
    bool here = access(path, R_OK) == 0;
    if (!here) printf("skipped: no test data in FOREPACK_DATA (%s)\n", path);
    free(path);
    return here;
}

// Returns true if the last argument is "data". Skips the suite if the data is wanted and absent.
static inline bool external_data_wanted(int argc, char **argv)
{
    const bool wanted = argc > 1 && strcmp(argv[argc - 1], "data") == 0;
    SKIP_UNLESS(!wanted || external_data_is_here());
    return wanted;
}
