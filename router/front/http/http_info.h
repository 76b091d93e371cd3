// SPDX-License-Identifier: Apache-2.0
// Handlers of the HTTP endpoints that do not generate. The context of their routes is a struct http_service.
#pragma once

#include "lib/http/http.h"

void http_models_get(struct http_exchange *x); // lists the models, or describes the model that the path names
void http_health_get(struct http_exchange *x); // 200, or 503 when too many events wait for the core
void http_ready_get(struct http_exchange *x);  // 200 when a new request would be served
void http_version_get(struct http_exchange *x);
void http_tokenizer_info_get(struct http_exchange *x);
void http_tokenize_post(struct http_exchange *x);
void http_detokenize_post(struct http_exchange *x);
