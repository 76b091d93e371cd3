// SPDX-License-Identifier: Apache-2.0
// The thread that writes metrics. It asks the core's thread for a copy of its counts, writes them as text and passes
// the text on. Requests that come while it works share the next copy, so that the core's thread makes one copy at a
// time, however often metrics are asked for.
#pragma once

#include "router/front/front.h"
#include "router/metrics/metrics.h"

struct metrics_reporter;

// Called on the reporter's thread, exactly once for each request. `text` is valid until it returns.
typedef void (*metrics_answer_fn)(void *arg, enum metrics_format format, const char *text, size_t size);

// Borrows the front, whose loop and pool must run until metrics_reporter_close().
struct metrics_reporter *metrics_reporter_open(const struct front *front);
// Asks for the metrics without blocking. `http` has the current counts of the HTTP server; the counts of the last call
// are written. Any thread.
void metrics_reporter_ask(struct metrics_reporter *reporter, enum metrics_format format,
                          const struct http_server_status *http, metrics_answer_fn answer, void *arg);
// Answers the requests that came before, then ends the thread. NULL is allowed.
void metrics_reporter_close(struct metrics_reporter *reporter);
