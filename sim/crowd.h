// SPDX-License-Identifier: Apache-2.0
// Scenarios in which one tenant's long answers fill the worker groups and others send short requests: a request of
// another tenant has its first token after at most two passes of others and one of its own.
#pragma once

#include "lib/base/random.h"
#include "sim/client_state.h"

void crowd_generate(struct random_source *random, struct scenario *s);

// Returns true if the bound holds in the scenario: every prompt fits a pass next to all decode rows, all answers fit
// the KV cache, messages take less than a quarter of a pass, and nothing fails.
bool crowd_applies(const struct scenario *s);
void crowd_submitted(struct client *client);   // call when a request was submitted, before the tick
void crowd_first_token(struct client *client); // call when its first token comes
