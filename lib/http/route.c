// SPDX-License-Identifier: Apache-2.0
#include "lib/http/route.h"

#include <stdio.h>
#include <string.h>

static bool path_matches(const char *pattern, const char *path)
{
    size_t size = strlen(pattern);
    if (size && pattern[size - 1] == '*') return strncmp(pattern, path, size - 1) == 0 && path[size - 1];
    return strcmp(pattern, path) == 0;
}

static bool method_matches(const char *offered, const char *method)
{
    return strcmp(offered, method) == 0 || (strcmp(offered, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

// Adds a method unless it is listed. No method is a part of another one's name.
static void add_method(char methods[HTTP_METHODS_BYTES], const char *method)
{
    size_t at = strlen(methods);
    if (strstr(methods, method)) return;
    snprintf(methods + at, HTTP_METHODS_BYTES - at, "%s%s", at ? ", " : "", method);
}

enum route_result route_find(const struct http_route *routes, const char *method, const char *path,
                             const struct http_route **route_p, char methods[HTTP_METHODS_BYTES])
{
    bool options = strcmp(method, "OPTIONS") == 0;
    bool any_path = options && strcmp(path, "*") == 0; // asks about the server as a whole
    methods[0] = '\0';
    for (const struct http_route *route = routes; route->method; route++) {
        if (!any_path && !path_matches(route->path, path)) continue;
        if (method_matches(route->method, method)) {
            *route_p = route;
            return ROUTE_FOUND;
        }
        add_method(methods, route->method);
        if (strcmp(route->method, "GET") == 0) add_method(methods, "HEAD");
    }
    if (!any_path && !methods[0]) return ROUTE_NO_PATH;
    add_method(methods, "OPTIONS");
    return options ? ROUTE_OPTIONS : ROUTE_NO_METHOD;
}
