// SPDX-License-Identifier: Apache-2.0
// Logs the fields of bodies that the server does not know and ignores, so that an operator sees what a client asks for.
// Any thread.
#pragma once

#include <jansson.h>

// Logs each unknown field once in the life of the process, as the event field_ignored. Only names of at most 40 letters
// and underscores are logged, and at most 64 names: any client can send any name. Values are not logged.
void json_unknown_log(const char *api, const json_t *body);
