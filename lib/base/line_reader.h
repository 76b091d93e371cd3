// SPDX-License-Identifier: Apache-2.0
// Reads the lines of a file one after another, with memory for one line. Owned by its caller.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct line_reader {
    int fd;      // owned
    char *bytes; // [capacity]
    size_t from, to, capacity, max_bytes;
    bool skipping; // the rest of a line that was too long
};

enum line_result {
    LINE_READ,
    LINE_TOO_LONG, // the next call continues with the line after it
    LINE_END,
    LINE_FAILED, // errno names the error
};

// Returns -1, with errno set, if the file cannot be opened. A longer line than `max_bytes` is not read.
int line_reader_open(struct line_reader *reader, const char *path, size_t max_bytes);
void line_reader_close(struct line_reader *reader); // also a zeroed object
// Reads the next line without its line break, "\n" or "\r\n", into *line_p [*size_p], which is valid until the next
// call. The last line may have no line break.
enum line_result line_reader_next(struct line_reader *reader, const char **line_p, size_t *size_p);
