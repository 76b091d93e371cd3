// SPDX-License-Identifier: Apache-2.0
// Parses bodies of type multipart/form-data (RFC 7578) in pieces of any size. Memory is bounded: a part's data is
// passed on as it arrives, and only the headers of one part are kept. Owned by its caller; no locks.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"
#include "lib/http/buffer.h"

enum {
    MULTIPART_BOUNDARY_BYTES = 70,      // longest boundary (RFC 2046)
    MULTIPART_HEADERS_BYTES = 8 << 10,  // longest headers of a part
    MULTIPART_NAME_BYTES = 128,         // longest name of a field
    MULTIPART_FILENAME_BYTES = 1 << 10, // longest name of a file
    MULTIPART_PARTS_MAX = 64,
};

// Functions of the caller that take the parts. A failure ends the parsing.
struct multipart_ops {
    // `filename` is NULL if the part has none. Both texts are valid during the call, and may be malformed UTF-8.
    enum status (*begin)(void *arg, const char *name, const char *filename);
    enum status (*data)(void *arg, const char *bytes, size_t size); // size > 0
    enum status (*end)(void *arg);
};

struct multipart {
    enum multipart_state { MULTIPART_DATA, MULTIPART_DELIMITER, MULTIPART_HEADERS, MULTIPART_DONE } state;
    bool in_part;                                 // false: the data precedes the first part and is dropped
    char delimiter[MULTIPART_BOUNDARY_BYTES + 5]; // CRLF, two hyphens, boundary
    size_t delimiter_size;
    int n_parts;
    struct http_buffer held; // bytes that are not parsed yet
};

// `content_type` is the header's value, or NULL. Returns INVALID if it is not multipart/form-data with a boundary.
enum status multipart_init(struct multipart *m, const char *content_type);
// Parses the next bytes. Returns INVALID for a malformed body, or the failure of a function of `ops`. The parser must
// not be fed after a failure.
enum status multipart_feed(struct multipart *m, const char *bytes, size_t size, const struct multipart_ops *ops,
                           void *arg);
// Returns INVALID if the body ended before its last delimiter.
enum status multipart_check_end(const struct multipart *m);
void multipart_fini(struct multipart *m);
