// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_paging.h"

#include <stdlib.h>
#include <string.h>

#include "lib/http/query.h"

static enum status limit_read(const char *query, int most, int *limit_p)
{
    char text[16] = "", *end;
    int found = http_query_find(query, "limit", text, sizeof text);
    if (!found) return STATUS_OK;
    long limit = strtol(text, &end, 10);
    if (found < 0 || !*text || *end || limit < 1 || limit > most)
        return status_fail(STATUS_INVALID, "limit: must be a whole number from 1 to %d", most);
    *limit_p = (int)limit;
    return STATUS_OK;
}

enum status http_page_read(const struct http_exchange *x, int most, int usual, struct http_page *page_p)
{
    const char *query = http_query(x);
    char order[8] = "desc";
    *page_p = (struct http_page){.limit = usual};
    TRY(limit_read(query, most, &page_p->limit));
    if (http_query_find(query, "after", page_p->after, sizeof page_p->after) < 0)
        return status_fail(STATUS_INVALID, "after: must be the id of an item of this list");
    int ordered = http_query_find(query, "order", order, sizeof order);
    page_p->oldest_first = strcmp(order, "asc") == 0;
    if (ordered < 0 || (!page_p->oldest_first && strcmp(order, "desc") != 0))
        return status_fail(STATUS_INVALID, "order: must be asc or desc");
    return STATUS_OK;
}

void http_list_begin(struct bytes *out)
{
    JSON_ADD(out, "{\"object\":\"list\",\"data\":[");
}

void http_list_end(struct bytes *out, const char *first_id, const char *last_id, bool more)
{
    JSON_ADD(out, "],\"first_id\":");
    json_add_string(out, first_id);
    JSON_ADD(out, ",\"last_id\":");
    json_add_string(out, last_id);
    JSON_ADD(out, ",\"has_more\":");
    json_add(out, more ? "true}" : "false}");
}
