// SPDX-License-Identifier: Apache-2.0
// GET /v1/files/ID/content. The threads of the disk read pieces and send them until enough bytes are unread. Then the
// download waits until the client has read some.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/front/http/http_files.h"

enum { PIECE_BYTES = 64 << 10 };

struct download {
    struct http_exchange *x; // holds a reference
    struct http_batching *batching;
    char *id, *tenant;
    int fd;                // -1: not open yet
    atomic_int references; // of the exchange, and of the work that runs or waits
    atomic_bool waits;     // the next on_drain or on_close continues the work
    atomic_bool closed;
};

static void download_unref(struct download *d)
{
    if (atomic_fetch_sub(&d->references, 1) != 1) return;
    if (d->fd >= 0) close(d->fd);
    http_unref(d->x);
    free(d->id);
    free(d->tenant);
    free(d);
}

static bool download_begin(struct download *d)
{
    enum status status = file_store_read(d->batching->store, d->tenant, d->id, &d->fd);
    bool is_head = strcmp(http_method(d->x), "HEAD") == 0;
    if (status != STATUS_OK)
        http_batching_refuse(d->x, status);
    else if (is_head)
        http_respond(d->x, 200, "application/octet-stream", "", 0);
    else
        http_stream_begin(d->x, 200, "application/octet-stream");
    return status == STATUS_OK && !is_head;
}

// Sends the next piece. Returns false at the end of the content.
static bool download_send(struct download *d, char *piece, size_t *unread_p)
{
    ssize_t n = read(d->fd, piece, PIECE_BYTES);
    if (n < 0) {
        log_event_limited(LOG_ERROR, "batch_file_unreadable", LOG_FIELD("file", d->id),
                          LOG_FIELD("reason", strerror(errno)));
        http_stream_abort(d->x);
    } else if (n == 0) {
        http_stream_end(d->x);
    } else {
        *unread_p = http_stream_send(d->x, piece, (size_t)n);
    }
    return n > 0;
}

// Leaves the next piece to on_drain or on_close. Returns true if the work goes on instead, because the client has read
// enough meanwhile: no on_drain comes for bytes that it read before.
static bool download_goes_on(struct download *d)
{
    atomic_store(&d->waits, true);
    bool ready = http_stream_send(d->x, "", 0) < HTTP_WINDOW_BYTES || atomic_load(&d->closed);
    return ready && atomic_exchange(&d->waits, false);
}

static void download_run(void *arg)
{
    struct download *d = arg;
    char *piece = mem_alloc(PIECE_BYTES);
    bool more = d->fd >= 0 || download_begin(d), mine = true;
    while (more && mine && !atomic_load(&d->closed)) {
        size_t unread = 0;
        more = download_send(d, piece, &unread);
        mine = !more || unread < HTTP_WINDOW_BYTES || download_goes_on(d);
    }
    free(piece);
    if (mine) download_unref(d);
}

static void download_continue(struct http_exchange *x)
{
    struct download *d = ((struct http_call *)http_user(x))->transfer;
    if (d && atomic_exchange(&d->waits, false)) disk_pool_add(d->batching->disk, download_run, d);
}

void http_download_on_drain(struct http_exchange *x)
{
    download_continue(x);
}

void http_download_on_close(struct http_exchange *x, bool disconnected)
{
    struct download *d = ((struct http_call *)http_user(x))->transfer;
    if (d) {
        atomic_store(&d->closed, true);
        download_continue(x);
        download_unref(d);
    }
    http_call_on_close(x, disconnected);
}

void http_download_start(struct http_exchange *x, struct http_batching *batching, const char *id)
{
    struct download *d = mem_alloc(sizeof *d);
    http_ref(x);
    *d = (struct download){
        .x = x, .batching = batching, .id = mem_string(id), .tenant = mem_string(http_call_tenant(x)), .fd = -1};
    atomic_init(&d->references, 2);
    ((struct http_call *)http_user(x))->transfer = d;
    disk_pool_add(batching->disk, download_run, d);
}
