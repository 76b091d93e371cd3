// SPDX-License-Identifier: Apache-2.0
// Tells the service manager how the router is doing (lib/base/service_manager.h): a sentence with its requests and
// nodes, and a sign of life as long as the core's thread answers. Used by the main thread.
#pragma once

#include <signal.h>

#include "router/front/front.h"

struct service_state;

// Borrows the front. Its loop must be stopped before service_state_close().
struct service_state *service_state_open(struct front *front);
void service_state_close(struct service_state *state);

// Sets the reason why the last reload was refused, which the sentence shows; NULL: it was not refused.
void service_state_set_refused(struct service_state *state, const char *reason);

// Waits up to limit_us (-1: no limit) for a signal and reports the state meanwhile. Returns the signal, or 0 if the
// time has passed.
int service_state_wait(struct service_state *state, const sigset_t *signals, int64_t limit_us);
