// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_results.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/batch/batch_line.h"
#include "router/batch/disk_file.h"

enum { READ_BYTES = 64 << 10, WORD_BITS = 64 };

bool batch_results_is_done(const struct batch_results *results, int index)
{
    return results->done[index / WORD_BITS] >> (index % WORD_BITS) & 1;
}

static void mark_done(struct batch_results *results, enum batch_result which, int index)
{
    results->done[index / WORD_BITS] |= (uint64_t)1 << (index % WORD_BITS);
    results->lines[which]++;
}

// --- recovery: lines are read in pieces, because a line may be long

struct recovery {
    char start[BATCH_LINE_START_BYTES]; // first bytes of the line that is being read
    size_t start_bytes;
    uint64_t line_at; // offset of this line
};

// Ends a line at the offset `next`. Returns false if the line is damaged, or if its request is done already.
static bool line_end(struct batch_results *results, enum batch_result which, struct recovery *r, uint64_t next)
{
    int index = batch_line_index(results->batch_id, r->start, r->start_bytes);
    if (index < 0 || batch_results_is_done(results, index)) return false;
    mark_done(results, which, index);
    r->line_at = next;
    r->start_bytes = 0;
    return true;
}

// Reads whole lines from `bytes`, which start at offset `at`. Returns false at a damaged line.
static bool lines_read(struct batch_results *results, enum batch_result which, struct recovery *r, const char *bytes,
                       size_t size, uint64_t at)
{
    for (size_t i = 0; i < size;) {
        const char *end = memchr(bytes + i, '\n', size - i);
        size_t n = (end ? (size_t)(end - bytes) : size) - i, room = sizeof r->start - r->start_bytes;
        if (memchr(bytes + i, '\0', n)) return false; // a crash of the machine may leave zeros
        memcpy(r->start + r->start_bytes, bytes + i, n < room ? n : room);
        r->start_bytes += n < room ? n : room;
        i += n + (end != NULL);
        if (end && !line_end(results, which, r, at + i)) return false;
    }
    return true;
}

static enum status recover(struct batch_results *results, enum batch_result which)
{
    struct recovery r = {.line_at = 0};
    char *piece = mem_alloc(READ_BYTES);
    uint64_t at = 0;
    ssize_t n = 0;
    bool sound = true;
    while (sound && (n = read(results->fds[which], piece, READ_BYTES)) > 0) {
        sound = lines_read(results, which, &r, piece, (size_t)n, at);
        at += (uint64_t)n;
    }
    free(piece);
    if (n < 0) return disk_fail(results->paths[which]);
    if (at > r.line_at)
        log_event(LOG_WARN, "batch_lines_repaired", LOG_FIELD("file", results->paths[which]),
                  LOG_FIELD("whole_lines", results->lines[which]));
    results->bytes[which] = r.line_at;
    if (ftruncate(results->fds[which], (off_t)r.line_at) != 0) return disk_fail(results->paths[which]);
    return STATUS_OK;
}

static enum status open_file(struct batch_results *results, enum batch_result which)
{
    results->fds[which] = open(results->paths[which], O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return results->fds[which] >= 0 ? recover(results, which) : disk_fail(results->paths[which]);
}

enum status batch_results_open(struct batch_results *results, const char *folder, const char *batch_id)
{
    *results = (struct batch_results){.fds = {-1, -1}};
    snprintf(results->batch_id, sizeof results->batch_id, "%s", batch_id);
    results->paths[BATCH_OUTPUT] = mem_format("%s/%s.output", folder, batch_id);
    results->paths[BATCH_ERRORS] = mem_format("%s/%s.errors", folder, batch_id);
    results->done = mem_alloc_array(BATCH_LINES_MAX / WORD_BITS + 1, sizeof *results->done);
    enum status status = STATUS_OK;
    for (int i = 0; i < BATCH_RESULTS && status == STATUS_OK; i++)
        status = open_file(results, (enum batch_result)i);
    if (status != STATUS_OK) batch_results_close(results);
    return status;
}

void batch_results_close(struct batch_results *results)
{
    for (int i = 0; i < BATCH_RESULTS && results->done; i++) {
        if (results->fds[i] >= 0) close(results->fds[i]);
        free(results->paths[i]);
    }
    free(results->done);
    *results = (struct batch_results){.fds = {-1, -1}};
}

enum status batch_results_add(struct batch_results *results, enum batch_result which, int index, const char *line,
                              size_t size)
{
    enum status status = disk_write(results->fds[which], line, size);
    if (status != STATUS_OK) {
        // Cuts a part of the line off. If that fails, batch_results_sync() or the next start of the router does it.
        if (ftruncate(results->fds[which], (off_t)results->bytes[which]) != 0) results->unsynced = true;
        return status;
    }
    results->bytes[which] += size;
    results->unsynced = true;
    mark_done(results, which, index);
    return STATUS_OK;
}

enum status batch_results_sync(struct batch_results *results)
{
    if (!results->unsynced) return STATUS_OK;
    for (int i = 0; i < BATCH_RESULTS; i++)
        if (ftruncate(results->fds[i], (off_t)results->bytes[i]) != 0 || fdatasync(results->fds[i]) != 0)
            return disk_fail(results->paths[i]);
    results->unsynced = false;
    return STATUS_OK;
}
