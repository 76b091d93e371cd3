// SPDX-License-Identifier: Apache-2.0
// GET /metrics: see docs/metrics.md.
#pragma once

#include "lib/http/http.h"

#include "router/front/live/metrics_reporter.h"

struct http_service;

void http_metrics_get(struct http_exchange *x);

// Asks for the metrics of the router, see metrics_reporter_ask(). Returns false, and `answer` is not called, if the
// service is being closed. Any thread may call.
bool http_metrics_ask(struct http_service *service, enum metrics_format format, metrics_answer_fn answer, void *arg);
