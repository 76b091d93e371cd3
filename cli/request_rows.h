// SPDX-License-Identifier: Apache-2.0
// Requests from a JSON Lines file. A row has prompt, messages or token_ids, and optionally an id and any sampling or
// prefill field. Missing fields of a row have the values of the defaults.
#pragma once

#include "cli/request.h"
#include "lib/base/line_reader.h"

struct request_row {
    struct request_spec spec;
    int line; // line in the file, from 1
};

// Reads one row after another, with memory for one line. Owned by its caller.
struct request_reader {
    const char *path; // borrowed, as `defaults`
    const struct request_spec *defaults;
    struct line_reader lines;
    int line;
    bool warned; // the first unknown key was reported on standard error
};
enum status request_reader_open(struct request_reader *r, const char *path, const struct request_spec *defaults);
void request_reader_close(struct request_reader *r); // also a zeroed object
// Reads the next row. Sets *end_p to true, and no row, at the end of the file. The caller frees row_p->spec. Fails with
// STATUS_INVALID and an error message that names the line. Unknown keys are ignored.
enum status request_reader_next(struct request_reader *r, struct request_row *row_p, bool *end_p);

// Reads all rows, at least one. The caller frees the rows with request_rows_free(), or frees only the array and keeps
// the specs.
enum status request_rows_read(const char *path, const struct request_spec *defaults, struct request_row **rows_p,
                              int *n_p);
void request_rows_free(struct request_row *rows, int n);
