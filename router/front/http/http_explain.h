// SPDX-License-Identifier: Apache-2.0
// Writes the member "explain" of an answer, for requests with the field "explain".
#pragma once

#include "router/core/request.h"
#include "router/front/http/json_writer.h"

// Appends an object with what each stage decided for the request and why, as `forepack explain --json` shows it. Leaves
// out nodes and the load from other clients, unless it is for an operator. Core's thread.
void http_explain_add(const struct request *r, bool for_operator, struct bytes *out);
