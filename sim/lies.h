// SPDX-License-Identifier: Apache-2.0
// The messages of a lying node. Requests on the node may suffer, all other requests and the router must not.
#pragma once

#include <stddef.h>

#include "lib/base/random.h"

enum lie {
    LIE_COSTS,   // times, rows and attention pairs of passes: 0, huge or random
    LIE_LOAD,    // free KV blocks and counts in heartbeats
    LIE_CACHED,  // number of tokens found in the prefix cache
    LIE_IDS,     // extra results for requests that are not on the node
    LIE_TWICE,   // every message twice
    LIE_TOKENS,  // wrong tokens (even outside the vocabulary), or too many
    LIE_ENDS,    // finish reasons and errors (even invalid UTF-8), and released prompts
    LIE_KEPT,    // kept ranges, importance, and drafts that begin at a wrong token or are too long
    LIE_GARBAGE, // bytes that are no message, or a second Hello
    LIE_LOSE,    // results are left out
    LIE_RATES,   // keep rates and the reasons for them
    LIE_SILENT,  // heartbeats with progress, but no results
    LIES
};

// Calls `send` for each message that replaces the given message; there may be none. `send` takes ownership of the
// bytes, which are a separate allocation for each message.
typedef void lie_send_fn(void *arg, uint8_t *bytes, size_t n);
void lie_send(enum lie lie, struct random_source *random, const uint8_t *bytes, size_t n, lie_send_fn *send, void *arg);
