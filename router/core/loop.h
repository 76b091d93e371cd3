// SPDX-License-Identifier: Apache-2.0
// The thread that owns the core, and its mailbox. I/O threads post small functions. The thread calls these functions in
// the order of the posts, then calls core_tick(), and sleeps until the next post or core_next_deadline_us().
#pragma once

#include <stdint.h>

#include "router/core/core.h"

struct loop;

typedef void (*loop_fn)(struct core *c, void *arg, int64_t now_us);

struct loop *loop_start(struct core *c);                  // borrows the core until loop_stop()
void loop_post(struct loop *loop, loop_fn fn, void *arg); // any thread; never blocks
int loop_backlog(struct loop *loop);                      // posts not yet run; any thread
// Runs all posts so far, then joins the thread and frees the loop. Every loop_post() must have returned.
void loop_stop(struct loop *loop);
