// SPDX-License-Identifier: Apache-2.0
// Finds the route of a request in a table of routes. Any thread may call.
#pragma once

#include "lib/http/http.h"

enum { HTTP_METHODS_BYTES = 128 };

enum route_result {
    ROUTE_FOUND,
    ROUTE_OPTIONS,   // the client asks which methods the path has
    ROUTE_NO_METHOD, // the path has other methods
    ROUTE_NO_PATH,
};

// Finds the route. FOUND writes it to *route_p. OPTIONS and NO_METHOD write the path's methods, such as "GET, HEAD", to
// `methods`; path "*" has the methods of all routes.
enum route_result route_find(const struct http_route *routes, const char *method, const char *path,
                             const struct http_route **route_p, char methods[HTTP_METHODS_BYTES]);
