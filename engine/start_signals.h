// SPDX-License-Identifier: Apache-2.0
// Handles signals to a node's process before it has a link to the router (node.h), because opening a group and a model
// may take minutes. The first drain signal is kept for the link. A second drain signal ends the process immediately
// with exit code 1, unless it repeats the first. SIGHUP waits for the link. Called from the main thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Returns true if a drain signal that comes now repeats the signal of `first_us`: a service manager that signals all
// processes of a group also signals the launcher, which passes the signal on. So signals of a launched process count
// once within a second. Any thread may call.
bool drain_signal_repeats(int64_t first_us);

// Starts the watch. Call node_block_signals() first.
void start_signals_watch(void);

// Ends the watch, if there is one. A kept signal becomes pending again, for the link.
void start_signals_release(void);
