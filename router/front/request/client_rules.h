// SPDX-License-Identifier: Apache-2.0
// The operator's rules for the requests of a client. Any thread may call.
#pragma once

#include "router/front/request/answer.h"

// Returns the rules of the client's key, as the key file has them now, else the router's rules.
struct client_rules client_rules_get(const struct client *client);
