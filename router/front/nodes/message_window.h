// SPDX-License-Identifier: Apache-2.0
// Limits how many messages a node sends in a window of time. A node sends one for each pass and heartbeat, and some
// with drafts. One that sent many more would keep the core from the messages of other nodes. Not thread-safe.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

struct message_window {
    int64_t begun_us;
    int n; // messages since then
};

// Counts a message. Returns EXHAUSTED if there were too many in this window.
enum status message_window_add(struct message_window *window, int64_t now_us);
