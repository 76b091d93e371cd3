// SPDX-License-Identifier: Apache-2.0
// The options for shadows of pruned requests (router/core/shadow.h).
#pragma once

#include "lib/base/options.h"
#include "router/core/shadow.h"

struct shadow_flags {
    double share;
    int64_t per_s;
    char *fallback;
};

// clang-format off
#define SHADOW_OPTION_ROWS(s)                                                                                          \
    {.name = "shadow", .type = OPTION_REAL, .value = &(s).share, .default_text = "0", .min = 0, .max = 1,              \
     .help = "share of the pruned requests whose answer is compared with the whole prompt, after the client has it, "  \
             "while a worker group is idle"},                                                                          \
    {.name = "shadow-per-s", .type = OPTION_INT, .value = &(s).per_s, .default_text = "1", .min = 1, .max = 1000,      \
     .unit = "requests", .help = "most requests that are compared per second"},                                        \
    {.name = "shadow-fallback", .type = OPTION_STRING, .value = &(s).fallback, .default_text = "off",                  \
     .placeholder = "MEASURE[:Q]",                                                                                     \
     .help = "keep the prompts of a tenant whole while it is not shown at 95 % that a share Q of its answers agree: "  \
             "first-token[:Q], answer[:Q] or off; default of Q: --quality"}
// clang-format on

// Reads the options. `quality` is the share that must agree if --shadow-fallback names none; 0: there is no default.
// Returns STATUS_INVALID with an error message.
enum status shadow_options_read(const struct shadow_flags *flags, double quality, struct shadow_options *options_p);
