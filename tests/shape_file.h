// SPDX-License-Identifier: Apache-2.0
// Reads the shapes of bench/shapes for tests.
#pragma once

#include <check.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/text/config.h"

// Returns the configuration in bench/shapes/NAME.json.
static inline struct model_config shape_file_read(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *path = mem_format("%s/bench/shapes/%s.json", source ? source : ".", name);
    struct model_config config;
    ck_assert_msg(model_config_read(path, &config) == STATUS_OK, "%s", status_message());
    free(path);
    return config;
}
