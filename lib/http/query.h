// SPDX-License-Identifier: Apache-2.0
// Reads the query of a request (http_query()). Any thread may call.
#pragma once

#include <stddef.h>

// Copies the value of the first parameter `name`, decoded, to `value` [room]. Returns 1 if it was found, 0 if there is
// none, and -1 if it is too long.
int http_query_find(const char *query, const char *name, char *value, size_t room);
