// SPDX-License-Identifier: Apache-2.0
// What a lying node sends instead of its messages. Requests on it may suffer, all others and the router must not.
#pragma once

#include <stddef.h>

#include "lib/base/random.h"

enum lie {
    LIE_COSTS,   // times, rows and pairs of passes: none, huge, or any
    LIE_LOAD,    // free KV blocks and counts in heartbeats
    LIE_CACHED,  // tokens found in the prefix cache
    LIE_IDS,     // more results, for requests that are not on the node
    LIE_TWICE,   // every message twice
    LIE_TOKENS,  // wrong tokens, also outside the vocabulary, or too many
    LIE_ENDS,    // finish reasons and errors, also not UTF-8; prompts that are released
    LIE_KEPT,    // kept ranges, importance, and drafts that begin elsewhere or are too long
    LIE_GARBAGE, // bytes that are no message, or a second Hello
    LIE_LOSE,    // results are left out
    LIE_RATES,   // keep rates and what decided them
    LIES
};

// Gives the messages that leave instead of one, or none, to `send`: each in a block of its own, which it takes over.
typedef void lie_send_fn(void *arg, uint8_t *bytes, size_t n);
void lie_send(enum lie lie, struct random_source *random, const uint8_t *bytes, size_t n, lie_send_fn *send, void *arg);
