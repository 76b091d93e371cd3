// SPDX-License-Identifier: Apache-2.0
// Ends the router's work after SIGTERM or SIGINT: a time in which it is not ready but still serves new requests, then
// the drain. Used by the main thread.
#pragma once

#include <signal.h>

#include "router/service_state.h"

struct shutdown {
    struct front *front;
    struct http_service *http;
    struct service_state *state;
    const sigset_t *signals;
    int64_t delay_ms, drain_ms;
};

// Returns true if all requests ended in time.
bool router_shut_down(const struct shutdown *shutdown);
