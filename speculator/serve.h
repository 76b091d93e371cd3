// SPDX-License-Identifier: Apache-2.0
// The serving loop of a speculator's leader: hands the router's bins to the scorer, runs its passes, sends results.
#pragma once

#include "engine/node_main.h"

// For struct node_program.
enum node_end speculator_serve(struct engine *engine, struct node *node, const struct node_limits *limits);
