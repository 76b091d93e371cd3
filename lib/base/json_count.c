// SPDX-License-Identifier: Apache-2.0
#include "lib/base/json_count.h"

#include <stdbool.h>

enum { CONTAINERS_MAX = 1 << 16, VALUES_MAX = 1 << 21 };

void json_count_add(struct json_count *count, const char *text, size_t n)
{
    bool string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (string && c == '\\') {
            i++;
        } else if (c == '"') {
            string = !string;
        } else if (!string) {
            count->containers += c == '{' || c == '[';
            count->commas += c == ',';
        }
    }
}

enum status json_count_check(const struct json_count *count, const char *what)
{
    if (count->containers > CONTAINERS_MAX)
        return status_fail(STATUS_INVALID, "%s over %d lists and objects: send fewer per request", what,
                           CONTAINERS_MAX);
    if (count->commas > VALUES_MAX)
        return status_fail(STATUS_INVALID, "%s over %d values: send fewer per request", what, VALUES_MAX);
    return STATUS_OK;
}
