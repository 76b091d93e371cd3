// SPDX-License-Identifier: Apache-2.0
// Signals to a node's process before it has a link to the router (node.h): opening a group and a model may take
// minutes. The first signal to drain is kept for the link, a second one ends the process at once with exit code 1.
// SIGHUP waits for the link. From the main thread.
#pragma once

// After node_block_signals().
void start_signals_watch(void);

// Ends the watch, if there is one. The signal that was kept is pending again.
void start_signals_release(void);
