// SPDX-License-Identifier: Apache-2.0
// Lists of the HTTP API with pages: the query's fields, and the ends of the answer. Any thread may call.
#pragma once

#include "router/front/http/http_call.h"

enum { HTTP_CURSOR_ROOM = 128 };

struct http_page {
    int limit;
    char after[HTTP_CURSOR_ROOM]; // "": from the start
    bool oldest_first;
};

// Reads limit (1 to `most`, default `usual`), after and order. Returns INVALID.
enum status http_page_read(const struct http_exchange *x, int most, int usual, struct http_page *page_p);
// Append the start, and the end with the ids of the first and last item; NULL: the list is empty.
void http_list_begin(struct bytes *out);
void http_list_end(struct bytes *out, const char *first_id, const char *last_id, bool more);
