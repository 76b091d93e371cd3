// SPDX-License-Identifier: Apache-2.0
// Decides whether a node may attach, from its Hello: counts, tokenizer, model, arithmetic, id, and room for it. A
// refusal is a status with a sentence for the operator. Reads the core and changes nothing. Use on the core's thread
// only.
#pragma once

#include "router/core/core_state.h"

// Checks a Hello. `old` is the attached node of the same id, or NULL.
enum status node_hello_check(const struct core *c, const struct node_hello *h, const struct core_node *old,
                             int64_t now_us);
