// SPDX-License-Identifier: Apache-2.0
// Looks a request up in a table of routes. Any thread.
#pragma once

#include "lib/http/http.h"

enum { HTTP_METHODS_BYTES = 128 };

enum route_result {
    ROUTE_FOUND,
    ROUTE_OPTIONS,   // the client asks which methods the path has
    ROUTE_NO_METHOD, // the path has other methods
    ROUTE_NO_PATH,
};

// On FOUND the route goes to *route_p. On OPTIONS and NO_METHOD the path's methods go to `methods`, as in "GET, HEAD".
enum route_result route_find(const struct http_route *routes, const char *method, const char *path,
                             const struct http_route **route_p, char methods[HTTP_METHODS_BYTES]);
