// SPDX-License-Identifier: Apache-2.0
// Logs the fields of bodies that the server does not know and ignores, so that an operator sees what a client asks for.
// Any thread may call.
#pragma once

#include "router/front/http/json_body.h"

// Logs each field of a body that `knows` does not know, once in the life of the process, as the event field_ignored.
// Only names of at most 40 letters and underscores are logged, and at most 64 names: any client can send any name.
// Values are not logged.
void json_unknown_log(const char *api, json_knows_fn *knows, const json_t *body);
