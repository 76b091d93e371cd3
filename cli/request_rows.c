// SPDX-License-Identifier: Apache-2.0
#include "cli/request_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

struct reading {
    const char *path;
    struct request_row *rows;
    int n, capacity;
    bool warned;
};

static enum status rows_add(struct reading *r, const struct request_spec *defaults, char *line, int number)
{
    json_error_t error;
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!object) return status_fail(STATUS_INVALID, "%s:%d: not JSON: %s", r->path, number, error.text);
    MEM_GROW(r->rows, r->n, r->capacity);
    struct request_row *row = &r->rows[r->n++];
    *row = (struct request_row){.line = number};
    request_spec_copy(defaults, &row->spec);
    const char *unknown = NULL;
    enum status status = request_spec_from_json(&row->spec, object, &unknown);
    if (status != STATUS_OK) status_context(status, "%s:%d", r->path, number);
    if (unknown && !r->warned) {
        fprintf(stderr, "%s: unknown keys are ignored, the first is '%s' in line %d\n", r->path, unknown, number);
        r->warned = true;
    }
    json_decref(object);
    return status;
}

enum status request_rows_read(const char *path, const struct request_spec *defaults, struct request_row **rows_p,
                              int *n_p)
{
    char *data, *saved = NULL;
    size_t size;
    enum status status = read_whole_file(path, &data, &size);
    if (status != STATUS_OK) return status;
    if (strlen(data) != size) status = status_fail(STATUS_INVALID, "%s: not JSON Lines: it has a NUL byte", path);
    struct reading r = {.path = path};
    int number = 0;
    for (char *line = data; status == STATUS_OK && line; line = saved) {
        saved = strchr(line, '\n');
        if (saved) *saved++ = 0;
        number++;
        if (line[strspn(line, " \t\r")]) status = rows_add(&r, defaults, line, number);
    }
    free(data);
    if (status == STATUS_OK && !r.n) status = status_fail(STATUS_INVALID, "%s: has no rows", path);
    if (status == STATUS_OK) {
        *rows_p = r.rows;
        *n_p = r.n;
    } else {
        request_rows_free(r.rows, r.n);
    }
    return status;
}

void request_rows_free(struct request_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        request_spec_free(&rows[i].spec);
    free(rows);
}
