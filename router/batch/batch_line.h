// SPDX-License-Identifier: Apache-2.0
// The lines of a batch: requests of its input file, and answers of its output and error files. Does no input or output.
// Any thread may call.
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/unicode.h"
#include "router/batch/batch_id.h"

enum {
    BATCH_LINES_MAX = 50000,
    BATCH_LINE_BYTES = 16 << 20, // longest line
    BATCH_CUSTOM_ID_BYTES = 512, // longest custom_id
    BATCH_LINE_ID_ROOM = 48,
};

// An error of a line of the input, as `errors` of a batch has it.
struct batch_error {
    char code[32];
    char param[32]; // "": none
    char message[192];
    int line; // number of the line, from 1; 0: not about a line
};

// Sets the texts, cut to their room, and line 0.
void batch_error_set(struct batch_error *error, const char *code, const char *param, const char *message);

// A request of the input. Owns its members.
struct batch_request {
    char *custom_id;
    char *body; // JSON [body_bytes], NUL-terminated
    size_t body_bytes;
};
void batch_request_fini(struct batch_request *request);

// Reads a line without its line break. `endpoint` is the endpoint of the batch. The request gets the lowest priority,
// even if the line asks for another. On failure returns INVALID and fills *error_p, except its member `line`.
enum status batch_line_read(const char *line, size_t size, const char *endpoint, struct batch_request *request_p,
                            struct batch_error *error_p);

// Writes the id of request `index` of a batch. batch_line_index() reads the index from the start of an answer's line.
// Returns -1 if the line does not start as batch_line_add_answer() and batch_line_add_error() write it.
void batch_line_id(const char *batch_id, int index, char id[BATCH_LINE_ID_ROOM]);
int batch_line_index(const char *batch_id, const char *line, size_t size);
enum { BATCH_LINE_START_BYTES = 50 }; // bytes that batch_line_index() needs

// Append a line of the output or error file: an answer with its HTTP status, or an error without an answer.
void batch_line_add_answer(struct bytes *out, const char *line_id, const char *custom_id, int http_status,
                           const char *request_id, const char *body, size_t body_bytes);
void batch_line_add_error(struct bytes *out, const char *line_id, const char *custom_id, const char *code,
                          const char *message);
