// SPDX-License-Identifier: Apache-2.0
// Decides from a node's Hello, or from its report while it loads, whether the node may attach. Checks its counts,
// tokenizer, model, arithmetic and id, and that the router has room for it. status_message() tells the operator why a
// node is refused. Reads the core and changes nothing. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Checks a Hello. `old` is the attached node of the same id, or NULL.
enum status node_hello_check(const struct core *c, const struct node_hello *h, const struct core_node *old,
                             int64_t now_us);
// Checks the report of a node that loads. `old` is the earlier report of this id, or NULL.
enum status node_loading_check(const struct core *c, const struct node_loading *l, const struct node_loading *old);
