// SPDX-License-Identifier: Apache-2.0
// Requests from a JSON Lines file. A row has prompt, messages or token_ids, and optionally an id and any sampling or
// prefill field. Missing fields of a row have the values of the defaults.
#pragma once

#include "cli/request.h"

struct request_row {
    struct request_spec spec;
    int line; // line in the file, from 1
};

// Reads all rows, at least one. Fails with STATUS_INVALID and an error message that names the line. Unknown keys are
// ignored; the first one is reported on standard error. The caller frees the rows with request_rows_free(), or frees
// only the array and keeps the specs.
enum status request_rows_read(const char *path, const struct request_spec *defaults, struct request_row **rows_p,
                              int *n_p);
void request_rows_free(struct request_row *rows, int n);
