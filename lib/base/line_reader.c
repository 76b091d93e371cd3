// SPDX-License-Identifier: Apache-2.0
#include "lib/base/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { FIRST_BYTES = 64 << 10 };

int line_reader_open(struct line_reader *reader, const char *path, size_t max_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    *reader = (struct line_reader){.fd = fd, .max_bytes = max_bytes, .capacity = FIRST_BYTES};
    reader->bytes = mem_alloc(reader->capacity);
    return 0;
}

void line_reader_close(struct line_reader *reader)
{
    if (!reader->bytes) return;
    close(reader->fd);
    free(reader->bytes);
    *reader = (struct line_reader){.fd = -1};
}

// Makes room and reads more bytes. Returns the result of read().
static ssize_t read_more(struct line_reader *r)
{
    if (r->from) memmove(r->bytes, r->bytes + r->from, r->to - r->from);
    r->to -= r->from;
    r->from = 0;
    if (r->to == r->capacity) {
        r->capacity *= 2;
        r->bytes = mem_resize(r->bytes, r->capacity, 1);
    }
    ssize_t n;
    do {
        n = read(r->fd, r->bytes + r->to, r->capacity - r->to);
    } while (n < 0 && errno == EINTR);
    if (n > 0) r->to += (size_t)n;
    return n;
}

static enum line_result line_give(struct line_reader *r, size_t n, size_t used, const char **line_p, size_t *size_p)
{
    bool skipped = r->skipping || n > r->max_bytes;
    *line_p = r->bytes + r->from;
    *size_p = n > 0 && (*line_p)[n - 1] == '\r' ? n - 1 : n;
    r->from += used;
    r->skipping = false;
    return skipped ? LINE_TOO_LONG : LINE_READ;
}

enum line_result line_reader_next(struct line_reader *r, const char **line_p, size_t *size_p)
{
    for (size_t scanned = 0;;) {
        size_t size = r->to - r->from;
        const char *start = r->bytes + r->from, *end = memchr(start + scanned, '\n', size - scanned);
        if (end) return line_give(r, (size_t)(end - start), (size_t)(end - start) + 1, line_p, size_p);
        if (size > r->max_bytes) {
            r->skipping = true;
            r->from = r->to;
            size = 0;
        }
        scanned = size;
        ssize_t n = read_more(r);
        if (n < 0) return LINE_FAILED;
        if (n > 0) continue;
        if (!size && !r->skipping) return LINE_END;
        return line_give(r, size, size, line_p, size_p);
    }
}
