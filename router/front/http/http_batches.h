// SPDX-License-Identifier: Apache-2.0
// Handlers of /v1/batches. Any thread may call.
#pragma once

#include "lib/http/http.h"

void http_batches_post(struct http_exchange *x);
void http_batches_list(struct http_exchange *x);
void http_batches_get(struct http_exchange *x);
void http_batches_cancel(struct http_exchange *x);
