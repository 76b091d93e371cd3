// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_files.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/http/query.h"
#include "router/front/http/http_paging.h"

enum { LIST_MAX = 10000 };

void http_file_add(struct bytes *out, const struct file_info *info)
{
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, info->id);
    JSON_ADD(out, ",\"object\":\"file\",\"bytes\":");
    json_add_integer(out, (int64_t)info->bytes);
    JSON_ADD(out, ",\"created_at\":");
    json_add_integer(out, info->created_us / 1000000);
    JSON_ADD(out, ",\"expires_at\":");
    if (info->expires_s) {
        json_add_integer(out, info->expires_s);
    } else {
        JSON_ADD(out, "null");
    }
    JSON_ADD(out, ",\"filename\":");
    json_add_string(out, info->name);
    JSON_ADD(out, ",\"purpose\":");
    json_add_string(out, info->purpose);
    JSON_ADD(out, ",\"status\":\"processed\",\"status_details\":null}");
}

static void answer_free(struct http_exchange *x, struct bytes *json)
{
    http_answer(x, json);
    bytes_free(json);
}

// --- a list

static enum status query_read(const struct http_exchange *x, struct http_page *page, char purpose[64],
                              struct file_query *query)
{
    TRY(http_page_read(x, LIST_MAX, LIST_MAX, page));
    int found = http_query_find(http_query(x), "purpose", purpose, 64);
    if (found < 0) return status_fail(STATUS_INVALID, "purpose: must have at most 63 bytes");
    *query = (struct file_query){.tenant = http_call_tenant(x),
                                 .purpose = found ? purpose : NULL,
                                 .after = *page->after ? page->after : NULL,
                                 .limit = page->limit,
                                 .oldest_first = page->oldest_first};
    return STATUS_OK;
}

void http_files_list(struct http_exchange *x)
{
    struct http_batching *batching = http_batching_of(x);
    struct http_page page;
    struct file_query query;
    struct file_info *list;
    char purpose[64];
    int n;
    bool more;
    if (!batching) return;
    enum status status = query_read(x, &page, purpose, &query);
    if (status == STATUS_OK) status = file_store_list(batching->store, &query, &list, &n, &more);
    if (status != STATUS_OK) {
        http_batching_refuse(x, status);
        return;
    }
    struct bytes out = {0};
    http_list_begin(&out);
    for (int i = 0; i < n; i++) {
        json_add_comma(&out);
        http_file_add(&out, &list[i]);
    }
    http_list_end(&out, n ? list[0].id : NULL, n ? list[n - 1].id : NULL, more);
    for (int i = 0; i < n; i++)
        file_info_fini(&list[i]);
    free(list);
    answer_free(x, &out);
}

// --- a file

// Returns what follows /v1/files/ in the path.
static const char *path_rest(const struct http_exchange *x)
{
    return http_path(x) + sizeof "/v1/files/" - 1;
}

void http_files_get(struct http_exchange *x)
{
    static const char content[] = "/content";
    struct http_batching *batching = http_batching_of(x);
    struct file_info info;
    char id[HTTP_CURSOR_ROOM] = "";
    if (!batching) return;
    size_t size = strlen(path_rest(x)), suffix = sizeof content - 1;
    bool reads = size > suffix && strcmp(path_rest(x) + size - suffix, content) == 0;
    size_t n = reads ? size - suffix : size;
    if (n < sizeof id) memcpy(id, path_rest(x), n);
    if (reads) {
        http_download_start(x, batching, id);
        return;
    }
    enum status status = file_store_get(batching->store, http_call_tenant(x), id, &info);
    if (status != STATUS_OK) {
        http_batching_refuse(x, status);
        return;
    }
    struct bytes out = {0};
    http_file_add(&out, &info);
    file_info_fini(&info);
    answer_free(x, &out);
}

// --- deleting, which may take long for a large file

struct deletion {
    struct http_exchange *x; // holds a reference
    struct file_store *store;
    char *tenant;
};

static void deletion_run(void *arg)
{
    struct deletion *deletion = arg;
    struct http_exchange *x = deletion->x;
    struct bytes out = {0};
    enum status status = file_store_delete(deletion->store, deletion->tenant, path_rest(x));
    if (status == STATUS_OK) {
        JSON_ADD(&out, "{\"id\":");
        json_add_string(&out, path_rest(x));
        JSON_ADD(&out, ",\"object\":\"file\",\"deleted\":true}");
        answer_free(x, &out);
    } else {
        http_batching_refuse(x, status);
    }
    http_unref(x);
    free(deletion->tenant);
    free(deletion);
}

void http_files_delete(struct http_exchange *x)
{
    struct http_batching *batching = http_batching_of(x);
    if (!batching) return;
    struct deletion *deletion = mem_alloc(sizeof *deletion);
    *deletion = (struct deletion){x, batching->store, mem_string(http_call_tenant(x))};
    http_ref(x);
    disk_pool_add(batching->disk, deletion_run, deletion);
}
