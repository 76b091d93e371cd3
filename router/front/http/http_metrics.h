// SPDX-License-Identifier: Apache-2.0
// GET /metrics: see docs/metrics.md.
#pragma once

#include "lib/http/http.h"

void http_metrics_get(struct http_exchange *x);
