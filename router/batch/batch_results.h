// SPDX-License-Identifier: Apache-2.0
// The answers of a running batch: two append-only files, batches/ID.output and batches/ID.errors. They are the batch's
// journal, too: a request is done if one of them has its whole line. So a crash loses no written answer, and no request
// has two answers. A line that a crash cut short is removed when the files are opened, and its request runs again.
//
// Owned by the thread of the batches.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "router/batch/batch_id.h"

enum batch_result { BATCH_OUTPUT, BATCH_ERRORS, BATCH_RESULTS };

struct batch_results {
    char batch_id[BATCH_ID_ROOM];
    char *paths[BATCH_RESULTS];
    int fds[BATCH_RESULTS];
    uint64_t bytes[BATCH_RESULTS];
    int lines[BATCH_RESULTS];
    uint64_t *done; // bits of the requests that have an answer
    bool unsynced;
};

// Opens the files and creates missing ones. Reads which requests are done. Removes everything from the first damaged
// line of a file on. Returns EXHAUSTED or INTERNAL.
enum status batch_results_open(struct batch_results *results, const char *folder, const char *batch_id);
void batch_results_close(struct batch_results *results); // also a zeroed object
bool batch_results_is_done(const struct batch_results *results, int index);
// Appends the line of request `index`, which is not done. After a failure the file is as before.
enum status batch_results_add(struct batch_results *results, enum batch_result which, int index, const char *line,
                              size_t size);
enum status batch_results_sync(struct batch_results *results); // after it, the answers survive a crash of the machine
