// SPDX-License-Identifier: Apache-2.0
// The leader of a speculator: takes bins from the router's link, keeps the scorer at work, sends results.
#pragma once

#include "engine/node_main.h"

// For struct node_program.
enum node_end speculator_serve(struct engine *engine, struct node *node, const struct node_limits *limits);
