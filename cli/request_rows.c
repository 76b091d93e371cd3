// SPDX-License-Identifier: Apache-2.0
#include "cli/request_rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { LINE_BYTES_MAX = 64 << 20 };

enum status request_reader_open(struct request_reader *r, const char *path, const struct request_spec *defaults)
{
    *r = (struct request_reader){.path = path, .defaults = defaults};
    if (line_reader_open(&r->lines, path, LINE_BYTES_MAX) == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
}

void request_reader_close(struct request_reader *r)
{
    line_reader_close(&r->lines);
}

static enum status row_parse(struct request_reader *r, const char *line, size_t size, struct request_row *row_p)
{
    json_error_t error;
    if (memchr(line, '\0', size))
        return status_fail(STATUS_INVALID, "%s:%d: not JSON Lines: it has a NUL byte", r->path, r->line);
    json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!object) return status_fail(STATUS_INVALID, "%s:%d: not JSON: %s", r->path, r->line, error.text);
    struct request_row row = {.line = r->line};
    request_spec_copy(r->defaults, &row.spec);
    const char *unknown = NULL;
    enum status status = request_spec_from_json(&row.spec, object, &unknown);
    if (status != STATUS_OK) status_context(status, "%s:%d", r->path, r->line);
    if (unknown && !r->warned) {
        fprintf(stderr, "%s: unknown keys are ignored, the first is '%s' in line %d\n", r->path, unknown, r->line);
        r->warned = true;
    }
    json_decref(object);
    if (status == STATUS_OK)
        *row_p = row;
    else
        request_spec_free(&row.spec);
    return status;
}

static bool is_blank(const char *line, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r", line[i]) || !line[i]) return false;
    return true;
}

enum status request_reader_next(struct request_reader *r, struct request_row *row_p, bool *end_p)
{
    const char *line;
    size_t size;
    enum line_result result;
    do {
        result = line_reader_next(&r->lines, &line, &size);
        r->line++;
    } while (result == LINE_READ && is_blank(line, size));
    *end_p = result == LINE_END;
    if (result == LINE_READ) return row_parse(r, line, size, row_p);
    if (result == LINE_TOO_LONG)
        return status_fail(STATUS_INVALID, "%s:%d: the line has more than %d MiB", r->path, r->line,
                           LINE_BYTES_MAX >> 20);
    return *end_p ? STATUS_OK : status_fail(STATUS_INVALID, "%s: %s", r->path, strerror(errno));
}

enum status request_rows_read(const char *path, const struct request_spec *defaults, struct request_row **rows_p,
                              int *n_p)
{
    struct request_reader r;
    struct request_row *rows = NULL, row;
    int n = 0, capacity = 0;
    bool end = false;
    enum status status = request_reader_open(&r, path, defaults);
    while (status == STATUS_OK && !end) {
        status = request_reader_next(&r, &row, &end);
        if (status != STATUS_OK || end) continue;
        MEM_GROW(rows, n, capacity);
        rows[n++] = row;
    }
    request_reader_close(&r);
    if (status == STATUS_OK && !n) status = status_fail(STATUS_INVALID, "%s: has no rows", path);
    if (status == STATUS_OK) {
        *rows_p = rows;
        *n_p = n;
    } else {
        request_rows_free(rows, n);
    }
    return status;
}

void request_rows_free(struct request_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        request_spec_free(&rows[i].spec);
    free(rows);
}
