// SPDX-License-Identifier: Apache-2.0
// Requests from a JSON Lines file: a row has a prompt, messages or token_ids, perhaps an id, and any sampling or
// prefill field; what it does not say is the defaults'.
#pragma once

#include "cli/request.h"

struct request_row {
    struct request_spec spec;
    int line;
};

// At least one row. STATUS_INVALID with a sentence that names the line. Says once on standard error that a row has keys
// which are no request fields. The caller frees the rows, and their specs with request_spec_free.
enum status request_rows_read(const char *path, const struct request_spec *defaults, struct request_row **rows_p,
                              int *n_p);
void request_rows_free(struct request_row *rows, int n);
