// SPDX-License-Identifier: Apache-2.0
// Keeps the costs of start_costs.h in a file next to the packed weights, so that the next start need not measure them:
// a measurement reads all mapped weights into memory before the node is ready.
//
// The file is text:
//
//     forepack costs 1              version of the format
//     worker 1.0.0, machine 8f...   description of the node
//     1 1 52311                     rows, attention pairs and microseconds of a pass; one line for each pass
//     hash 0123456789abcdef         of all lines above
//
// A file of another format or node, and a damaged one, is logged and ignored. The costs need not be precise: the router
// corrects them by the first passes of requests.
#pragma once

#include <stdbool.h>

#include "engine/start_costs.h"

// Reads the costs of the node with this description, which is one line of at most 255 bytes. Returns false if the file
// has none.
bool kept_costs_read(const char *path, const char *node, struct start_costs *costs_p);

// Replaces the file. A failure is only logged: the next start measures again.
void kept_costs_write(const char *path, const char *node, const struct start_costs *costs);
