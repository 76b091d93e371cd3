// SPDX-License-Identifier: Apache-2.0
// Computes the usage of each request again from the results that a worker group sends and from the losses of groups,
// and compares it with the router's account after each message.
#pragma once

#include "sim/client_state.h"
#include "sim/world.h"

void oracle_steps_begin(struct world *w);       // call when a router starts
void oracle_steps_ended(struct client *client); // call when the client's request ends, before its client->r is cleared
