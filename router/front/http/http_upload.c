// SPDX-License-Identifier: Apache-2.0
// POST /v1/files. The connection's thread queues the bytes of the form, and a thread of the disk parses and writes
// them. The thread of the disk owns the parser and the file; at most one works on an upload.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/http/buffer.h"
#include "lib/http/multipart.h"
#include "router/front/http/http_files.h"

enum { VALUE_ROOM = 64, EXPIRES_MIN_S = 3600, EXPIRES_MAX_S = 30 * 24 * 3600 };

enum form_field { FIELD_FILE, FIELD_PURPOSE, FIELD_ANCHOR, FIELD_SECONDS, FORM_FIELDS };
static const char *const field_names[FORM_FIELDS] = {"file", "purpose", "expires_after[anchor]",
                                                     "expires_after[seconds]"};

struct upload {
    struct http_exchange *x; // holds a reference
    struct http_batching *batching;
    pthread_mutex_t lock;       // guards the members down to `working`
    struct http_buffer waiting; // bytes of the form
    bool ended, closed;         // the form is complete; the exchange is closed
    bool working;               // work was added that has not ended

    // The thread of the disk:
    struct multipart parser;
    struct file_upload *file; // NULL: none yet, or stored
    char *name;
    int field; // field of the part that is read; FORM_FIELDS: an unknown one
    bool seen[FORM_FIELDS];
    char values[FORM_FIELDS][VALUE_ROOM];
    bool answered;
};

// --- fields

static enum status part_begin(void *arg, const char *name, const char *filename)
{
    struct upload *u = arg;
    for (u->field = 0; u->field < FORM_FIELDS && strcmp(name, field_names[u->field]) != 0;)
        u->field++;
    if (u->field == FORM_FIELDS) return STATUS_OK;
    if (u->seen[u->field]) return status_fail(STATUS_INVALID, "%s: given more than once", field_names[u->field]);
    u->seen[u->field] = true;
    if (u->field != FIELD_FILE) return STATUS_OK;
    u->name = mem_string(filename && *filename ? filename : "upload");
    utf8_mend(u->name);
    return file_upload_begin(u->batching->store, http_call_tenant(u->x), &u->file);
}

static enum status part_data(void *arg, const char *bytes, size_t size)
{
    struct upload *u = arg;
    if (u->field == FORM_FIELDS) return STATUS_OK;
    if (u->field == FIELD_FILE) return file_upload_write(u->file, bytes, size);
    size_t n = strlen(u->values[u->field]);
    if (size >= VALUE_ROOM - n || memchr(bytes, '\0', size))
        return status_fail(STATUS_INVALID, "%s: must have at most %d bytes, and no zero byte", field_names[u->field],
                           VALUE_ROOM - 1);
    memcpy(u->values[u->field] + n, bytes, size);
    return STATUS_OK;
}

static enum status part_end(void *arg)
{
    return STATUS_OK;
}

static const struct multipart_ops form_ops = {part_begin, part_data, part_end};

static enum status check_purpose(const char *purpose)
{
    static const char *const purposes[] = {"batch", "assistants", "fine-tune", "vision", "user_data", "evals"};
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++)
        if (strcmp(purpose, purposes[i]) == 0) return STATUS_OK;
    return status_fail(
        STATUS_INVALID,
        "purpose: must be batch, assistants, fine-tune, vision, user_data or evals; only files for batch "
        "are used");
}

// Reads how long the file is kept. 0: for ever.
static enum status expiry_read(const struct upload *u, int64_t *seconds_p)
{
    char *end;
    const char *text = u->values[FIELD_SECONDS];
    long long seconds = strtoll(text, &end, 10);
    *seconds_p = strcmp(u->values[FIELD_PURPOSE], "batch") == 0 ? EXPIRES_MAX_S : 0;
    if (!u->seen[FIELD_ANCHOR] && !u->seen[FIELD_SECONDS]) return STATUS_OK;
    if (strcmp(u->values[FIELD_ANCHOR], "created_at") != 0)
        return status_fail(STATUS_INVALID, "expires_after[anchor]: must be created_at");
    if (!*text || *end || seconds < EXPIRES_MIN_S || seconds > EXPIRES_MAX_S)
        return status_fail(STATUS_INVALID, "expires_after[seconds]: must be a whole number from %d to %d",
                           EXPIRES_MIN_S, EXPIRES_MAX_S);
    *seconds_p = seconds;
    return STATUS_OK;
}

static enum status check_form(const struct upload *u, int64_t *expires_s_p)
{
    TRY(multipart_check_end(&u->parser));
    if (!u->file) return status_fail(STATUS_INVALID, "file: a part of this name is required");
    TRY(check_purpose(u->values[FIELD_PURPOSE]));
    return expiry_read(u, expires_s_p);
}

// --- work on the disk

static void upload_fail(struct upload *u, enum status status)
{
    u->answered = true;
    http_batching_refuse(u->x, status);
    file_upload_discard(u->file); // status_message() has been used
    u->file = NULL;
}

static void upload_finish(struct upload *u)
{
    struct file_info info = {.bytes = 0};
    enum status status = check_form(u, &info.expires_s);
    if (status != STATUS_OK) {
        upload_fail(u, status);
        return;
    }
    info.name = u->name;
    info.purpose = mem_string(u->values[FIELD_PURPOSE]);
    u->name = NULL;
    status = file_upload_commit(u->file, &info);
    u->file = NULL;
    if (status == STATUS_OK) {
        struct bytes out = {0};
        u->answered = true;
        http_file_add(&out, &info);
        http_answer(u->x, &out);
        bytes_free(&out);
    } else {
        upload_fail(u, status);
    }
    file_info_fini(&info);
}

static void upload_free(struct upload *u)
{
    file_upload_discard(u->file);
    multipart_fini(&u->parser);
    http_buffer_free(&u->waiting);
    pthread_mutex_destroy(&u->lock);
    http_unref(u->x);
    free(u->name);
    free(u);
}

// Takes the bytes that wait. Returns false, and ends the work, if there is nothing to do now.
static bool bytes_take(struct upload *u, struct http_buffer *bytes, bool *ended_p, bool *closed_p)
{
    pthread_mutex_lock(&u->lock);
    *bytes = u->waiting;
    *ended_p = u->ended;
    *closed_p = u->closed;
    u->waiting = (struct http_buffer){0};
    u->working = http_buffer_size(bytes) || u->closed || (u->ended && !u->answered);
    bool works = u->working;
    pthread_mutex_unlock(&u->lock);
    return works;
}

static void bytes_parse(struct upload *u, struct http_buffer *bytes)
{
    size_t size = http_buffer_size(bytes);
    if (!size) return;
    enum status status =
        u->answered ? STATUS_OK : multipart_feed(&u->parser, http_buffer_start(bytes), size, &form_ops, u);
    http_buffer_free(bytes);
    if (status != STATUS_OK) upload_fail(u, status);
    http_body_taken(u->x, size);
}

static void upload_work(void *arg)
{
    struct upload *u = arg;
    struct http_buffer bytes;
    bool ended, closed = false;
    while (!closed && bytes_take(u, &bytes, &ended, &closed)) {
        bytes_parse(u, &bytes);
        if (ended && !closed && !u->answered) upload_finish(u);
    }
    if (closed) upload_free(u);
}

// --- the connection's thread

static struct upload *upload_of(const struct http_exchange *x)
{
    return ((struct http_call *)http_user(x))->transfer;
}

// Ends a change of the upload: unlocks it, and adds work unless there is some.
static void upload_wake(struct upload *u)
{
    bool idle = !u->working;
    u->working = true;
    pthread_mutex_unlock(&u->lock);
    if (idle) disk_pool_add(u->batching->disk, upload_work, u);
}

void http_upload_on_head(struct http_exchange *x)
{
    struct multipart parser;
    if (!http_call_open(x)) return;
    struct http_batching *batching = http_batching_of(x);
    if (!batching) return;
    enum status status = multipart_init(&parser, http_header(x, "content-type"));
    if (status != STATUS_OK) {
        http_refuse(x, status);
        return;
    }
    struct upload *u = mem_alloc(sizeof *u);
    http_ref(x);
    u->x = x;
    u->batching = batching;
    u->parser = parser;
    pthread_mutex_init(&u->lock, NULL);
    ((struct http_call *)http_user(x))->transfer = u;
}

void http_upload_on_body(struct http_exchange *x, const char *bytes, size_t size)
{
    struct upload *u = upload_of(x);
    pthread_mutex_lock(&u->lock);
    http_buffer_append(&u->waiting, bytes, size);
    upload_wake(u);
}

void http_upload_on_request(struct http_exchange *x)
{
    struct upload *u = upload_of(x);
    pthread_mutex_lock(&u->lock);
    u->ended = true;
    upload_wake(u);
}

void http_upload_on_close(struct http_exchange *x, bool disconnected)
{
    struct upload *u = upload_of(x);
    if (u) {
        pthread_mutex_lock(&u->lock);
        u->closed = true;
        upload_wake(u);
    }
    http_call_on_close(x, disconnected);
}
