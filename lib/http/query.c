// SPDX-License-Identifier: Apache-2.0
#include "lib/http/query.h"

#include <stdlib.h>
#include <string.h>

// Decodes text[size] to `value` [room]. The parser has checked that two hex digits follow each '%'.
static int decode(const char *text, size_t size, char *value, size_t room)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        char hex[3] = "", c = text[i] == '+' ? ' ' : text[i];
        if (c == '%' && size - i > 2) {
            memcpy(hex, text + i + 1, 2);
            c = (char)strtoul(hex, NULL, 16);
            i += 2;
        }
        if (n + 1 >= room) return -1;
        value[n++] = c;
    }
    value[n] = '\0';
    return 1;
}

int http_query_find(const char *query, const char *name, char *value, size_t room)
{
    size_t name_size = strlen(name);
    for (const char *at = query; *at;) {
        size_t n = strcspn(at, "&");
        const char *equals = memchr(at, '=', n);
        size_t name_end = equals ? (size_t)(equals - at) : n;
        if (name_end == name_size && memcmp(at, name, name_size) == 0)
            return equals ? decode(equals + 1, n - name_end - 1, value, room) : decode("", 0, value, room);
        at += n + (at[n] == '&');
    }
    return 0;
}
