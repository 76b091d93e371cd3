// SPDX-License-Identifier: Apache-2.0
// The thread that formats metrics. It gets a copy of the counts from the core's thread and formats them as text.
// Requests that come meanwhile share the next copy. So the core's thread makes only one copy at a time, however many
// requests come.
#pragma once

#include "router/front/front.h"
#include "router/metrics/metrics.h"

struct metrics_reporter;

// Called on the reporter's thread, exactly once for each request. `text` is valid until the function returns.
typedef void (*metrics_answer_fn)(void *arg, enum metrics_format format, const char *text, size_t size);

// Borrows the front, whose loop and pool must run until metrics_reporter_close().
struct metrics_reporter *metrics_reporter_open(const struct front *front);
// Asks for the metrics without blocking. `http` and `batch` have the current counts of the HTTP service. If several
// requests share a copy, the counts of the last request are used. Any thread may call.
void metrics_reporter_ask(struct metrics_reporter *reporter, enum metrics_format format,
                          const struct http_server_status *http, const struct batch_metrics *batch,
                          metrics_answer_fn answer, void *arg);
// Answers the requests that came before, then ends the thread. NULL is allowed.
void metrics_reporter_close(struct metrics_reporter *reporter);
