// SPDX-License-Identifier: Apache-2.0
// forepack batch: sends the rows of a JSON Lines file over one GenerateMany call. Rows that already have an answer in
// the output file are not sent, so the same command resumes an interrupted run.
//
// The request id of a row is a random name of this run plus the row's number. Ids must be unique across all clients of
// a router, which may still have requests of an interrupted run. A row that is sent again keeps its id, so that its
// seed stays the same.
//
// The input is read twice, one line at a time: once to check it, and once to send it. So it may have any size. Memory
// holds the rows in flight, and 16 to 32 bytes for each id.
//
// At most `window` rows are in flight. The router packs its whole queue, so it should have many rows, but not the whole
// file. A row that was refused because the queue is full is sent again after the next answer. If no row is in flight,
// the row is sent again after a pause, and the command prints the reason. Each refusal reduces the window to the rows
// in flight; each answer increases the window by one.
//
// If the router is lost, the rows in flight continue over a new call to the next server of the list, after the tokens
// that have come (resume.h). When all servers are lost, pauses of 0.5 s follow that double up to 10 s. Rows are also
// sent again if the router serves nothing, for example because no worker group is attached. The command gives up when
// either state has lasted for --reconnect-s.
//
// The output is locked (flock) against a second run. Answers of an earlier run are copied to OUTPUT.part, which is
// synced and renamed, and the folder is synced. Each new answer is appended and flushed, and the file is synced at the
// end. So a killed process loses no written answer, and a crash of the machine loses no answer of a completed run.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/answer_lines.h"
#include "cli/commands.h"
#include "cli/id_set.h"
#include "cli/progress.h"
#include "cli/remote.h"
#include "cli/request_rows.h"
#include "cli/resume.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"
#include "lib/messages/unpack.h"

enum {
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNAVAILABLE = 14,
    PAUSE_MS = 500,
    RECONNECT_MAX_MS = 10000
};

static struct {
    struct remote remote;
    char *input, *output;
    int64_t window, reconnect_s;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Batch"},
    {.name = "input", .type = OPTION_STRING, .value = &o.input, .placeholder = "FILE",
     .help = "requests as JSON Lines: id, one of prompt, messages and token_ids, and any sampling or prefill field "
             "(required)"},
    {.name = "output", .type = OPTION_STRING, .value = &o.output, .placeholder = "FILE",
     .help = "answers as JSON Lines, one per request (required)"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "window", .type = OPTION_INT, .value = &o.window, .default_text = "512", .min = 1, .max = 100000,
     .unit = "requests", .help = "maximum number of requests in flight"},
    {.name = "reconnect-s", .type = OPTION_INT, .value = &o.reconnect_s, .default_text = "300", .max = 604800,
     .unit = "s", .help = "how long to wait for a router that is lost or serves nothing; 0: not at all"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

// A row in memory: one that waits to be sent (again), or one in flight.
struct row {
    struct request_spec spec;
    char *id;    // id of the row and its answer; spec.id is the request id
    bool in_use; // false: the place is free
    bool in_flight;
    bool sent_before; // the router may still run the request, so that it is sent as a resume
    struct answer answer;
};

struct batch {
    struct id_set ids;            // ids of all rows; those that have an answer are marked
    struct request_reader reader; // of the rows that were not sent yet
    struct row *rows;             // [window of the options]
    int *free, n_free;            // stack of the places in `rows` that are free
    int *waiting, n_waiting;      // stack of the rows to send again; the next row is the last
    int n_rows, n_read;           // rows of the input; those that the reader has returned
    int n_done, n_failed, n_in_flight, window;
    bool refused; // the last answer was a refusal: the router cannot accept the row now
    bool stalled; // the user was told that no row is accepted
    char run_name[20];
    int n_calls;        // number of GenerateMany calls so far
    int64_t trouble_us; // time since which the router is lost or serves nothing; 0: it serves
    int lock;           // descriptor of the output, which holds the lock; -1: none
    FILE *output;
    int64_t started_us;
    struct progress progress;
    long long tokens;
};

// --- files

// Returns the id of a row and its answer. The caller frees it.
static char *row_id(const struct request_row *row)
{
    return row->spec.id ? mem_string(row->spec.id) : mem_format("line-%d", row->line);
}

static enum status row_check(struct batch *b, const struct request_row *row)
{
    enum status status = STATUS_OK;
    char *id = row_id(row);
    if (!id_set_add(&b->ids, id))
        status = status_fail(STATUS_INVALID, "%s:%d: id '%s' is not unique", o.input, row->line, id);
    free(id);
    b->n_rows++;
    return status;
}

// Reads the whole input once, so that a wrong row is found before any is sent.
static enum status rows_check(struct batch *b, const struct request_spec *defaults)
{
    struct request_row row;
    bool end = false;
    TRY(request_reader_open(&b->reader, o.input, defaults));
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !end) {
        status = request_reader_next(&b->reader, &row, &end);
        if (status != STATUS_OK || end) continue;
        status = row_check(b, &row);
        request_spec_free(&row.spec);
    }
    request_reader_close(&b->reader);
    if (status == STATUS_OK && !b->n_rows) status = status_fail(STATUS_INVALID, "%s: has no rows", o.input);
    return status;
}

// Marks a row that has an answer of an earlier run. Answers stay in the file even if the input no longer has the row.
static bool row_resume(void *arg, const char *id)
{
    struct batch *b = arg;
    if (!id_set_has(&b->ids, id)) return true;
    if (!id_set_mark(&b->ids, id)) return false;
    b->n_done++;
    return true;
}

static enum status output_fail(const char *path)
{
    return status_fail(STATUS_INVALID, "--output %s: %s", path, strerror(errno));
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_input(const char *path)
{
    struct stat file, input;
    return stat(path, &file) == 0 && stat(o.input, &input) == 0 && is_same_file(&file, &input);
}

static char *part_path(void)
{
    return mem_format("%s.part", o.output);
}

static enum status output_check_input(void)
{
    if (is_input(o.output))
        return status_fail(STATUS_INVALID, "--output %s: is the input file: choose another one", o.output);
    char *part = part_path();
    bool part_is_input = is_input(part);
    free(part);
    if (!part_is_input) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--output %s: %s.part, which batch replaces, is the input file: choose another output", o.output,
                       o.output);
}

// Checks the output. Sets *is_file_p to true if it is a file or does not exist yet. A pipe or device has no earlier
// answers.
static enum status output_check(bool *is_file_p)
{
    struct stat output;
    *is_file_p = true;
    if (stat(o.output, &output) != 0) return errno == ENOENT ? STATUS_OK : output_fail(o.output);
    if (S_ISDIR(output.st_mode)) return status_fail(STATUS_INVALID, "--output %s: is a directory", o.output);
    *is_file_p = S_ISREG(output.st_mode);
    return STATUS_OK;
}

// Opens and locks the output. Repeats this if another run replaced the file between opening and locking. Refuses a
// symbolic link, because the new file would replace the link, not its target.
static enum status output_lock(int *fd_p)
{
    for (;;) {
        struct stat locked, named;
        int fd = open(o.output, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == ELOOP) {
            return status_fail(STATUS_INVALID, "--output %s: is a symbolic link: name the file that it points to",
                               o.output);
        }
        if (fd < 0) return output_fail(o.output);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int error = errno;
            close(fd);
            if (error != EWOULDBLOCK) return status_fail(STATUS_INVALID, "--output %s: %s", o.output, strerror(error));
            return status_fail(STATUS_INVALID, "--output %s: another forepack batch is writing it", o.output);
        }
        if (fstat(fd, &locked) == 0 && lstat(o.output, &named) == 0 && is_same_file(&locked, &named)) {
            *fd_p = fd;
            return STATUS_OK;
        }
        close(fd);
    }
}

static enum status output_copy(struct batch *b, FILE *from, FILE *to)
{
    TRY(answer_lines_copy(o.output, from, to, row_resume, b));
    return fsync(fileno(to)) == 0 ? STATUS_OK : output_fail(o.output);
}

// Creates OUTPUT.part with the mode of the output. Because of the lock on the output, no other run writes this file. A
// killed run may have left an old file.
static FILE *part_create(const struct batch *b, const char *path)
{
    struct stat output;
    if (unlink(path) != 0 && errno != ENOENT) return NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return NULL;
    if (fstat(b->lock, &output) == 0) fchmod(fd, output.st_mode & 0777);
    return fdopen(fd, "w");
}

// Replaces the output with a file that has only the complete answers of earlier runs. Opens this file as b->output.
static enum status output_resume(struct batch *b)
{
    int fd = dup(b->lock);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!file) return output_fail(o.output);
    char *temporary = part_path();
    FILE *resumed = part_create(b, temporary);
    enum status status = resumed ? output_copy(b, file, resumed) : output_fail(temporary);
    fclose(file);
    if (status == STATUS_OK && (flock(fileno(resumed), LOCK_EX | LOCK_NB) != 0 || rename(temporary, o.output) != 0))
        status = output_fail(o.output);
    if (status == STATUS_OK) folder_sync(o.output);
    if (status != STATUS_OK && resumed) {
        fclose(resumed);
        unlink(temporary);
        resumed = NULL;
    }
    free(temporary);
    b->output = resumed;
    return status;
}

static enum status output_open(struct batch *b)
{
    bool is_file;
    TRY(output_check(&is_file));
    if (is_file) {
        TRY(output_check_input());
        TRY(output_lock(&b->lock));
        return output_resume(b);
    }
    b->output = fopen(o.output, "ae");
    return b->output ? STATUS_OK : output_fail(o.output);
}

// --- progress

static void batch_draw(struct batch *b, bool last)
{
    double seconds = (double)(clock_now_us() - b->started_us) / 1e6;
    progress_draw(&b->progress, b->n_done, b->n_rows, last, "%d of %d, %d failed, %.0f tokens/s, %.0f s", b->n_done,
                  b->n_rows, b->n_failed, seconds > 0 ? (double)b->tokens / seconds : 0.0, seconds);
}

// --- the call

static enum status row_write(struct batch *b, const struct row *row)
{
    json_t *object = answer_json(&row->answer, row->id);
    int failed = json_dumpf(object, b->output, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    fputc('\n', b->output);
    if (!failed && fflush(b->output) == 0 && !ferror(b->output)) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "--output %s: %s", o.output, strerror(errno));
}

static bool row_failed(const struct row *row)
{
    return answer_reason_is_failure(json_string_value(json_object_get(row->answer.completion, "finish_reason")));
}

static void row_free(struct batch *b, struct row *row)
{
    answer_free(&row->answer);
    request_spec_free(&row->spec);
    free(row->id);
    *row = (struct row){.in_use = false};
    b->free[b->n_free++] = (int)(row - b->rows);
}

static enum status row_finish(struct batch *b, struct row *row)
{
    enum status status = row_write(b, row);
    if (status != STATUS_OK) return status;
    b->tokens += (long long)json_array_size(row->answer.token_ids);
    if (row_failed(row)) {
        const char *error = answer_error(&row->answer);
        b->n_failed++;
        if (b->n_failed == 1) fprintf(stderr, "%s: %s\n", row->id, error ? error : "the request was aborted");
    }
    id_set_mark(&b->ids, row->id);
    b->n_done++;
    b->n_in_flight--;
    row_free(b, row);
    batch_draw(b, false);
    return STATUS_OK;
}

// Returns the row in flight with this request id, or NULL.
static struct row *row_by_request_id(struct batch *b, const char *id)
{
    size_t length = strlen(b->run_name);
    char *end = "";
    bool mine = strncmp(id, b->run_name, length) == 0 && id[length] == '-';
    long place = mine ? strtol(id + length + 1, &end, 10) : -1;
    struct row *row = place >= 0 && place < o.window && *end == '-' ? &b->rows[place] : NULL;
    return row && row->in_flight && strcmp(row->spec.id, id) == 0 ? row : NULL;
}

// Puts a row in flight on the stack of waiting rows. It continues after its tokens, unless `anew` is true.
static void row_put_back(struct batch *b, struct row *row, bool anew)
{
    if (anew) {
        answer_free(&row->answer);
        answer_init(&row->answer);
    }
    row->in_flight = false;
    row->sent_before = !anew;
    b->waiting[b->n_waiting++] = (int)(row - b->rows);
    b->n_in_flight--;
}

// Records that the router is lost or serves nothing. Returns true if the command should still wait for the router.
static bool trouble_may_wait(struct batch *b, const char *sentence)
{
    int64_t now_us = clock_now_us();
    if (!b->trouble_us) {
        b->trouble_us = now_us;
        if (o.reconnect_s) fprintf(stderr, "\n%s: trying again for up to %lld s\n", sentence, (long long)o.reconnect_s);
    }
    return now_us - b->trouble_us < o.reconnect_s * 1000000;
}

static enum status batch_handle_response(struct batch *b, const Forepack__V1__GenerateResponse *m)
{
    struct row *row = row_by_request_id(b, m->request_id);
    if (!row) return STATUS_OK;
    bool ended = answer_add_response(&row->answer, m), unavailable = row->answer.error_code == GRPC_UNAVAILABLE;
    if (unavailable && !trouble_may_wait(b, answer_error(&row->answer)))
        return status_fail(STATUS_UNAVAILABLE, "%s", answer_error(&row->answer));
    if (!unavailable) b->trouble_us = 0;
    if (!ended) return STATUS_OK;
    // Another router would continue the row differently, so it begins anew.
    bool anew = row->answer.resumed && row->answer.error_code == GRPC_FAILED_PRECONDITION;
    if (anew) {
        row_put_back(b, row, true);
        return STATUS_OK;
    }
    b->refused = unavailable || row->answer.error_code == GRPC_RESOURCE_EXHAUSTED;
    if (b->refused) {
        if (!unavailable && b->n_in_flight == 1 && !b->stalled) {
            fprintf(stderr, "\n%s: trying again\n", answer_error(&row->answer));
            b->stalled = true;
        }
        row_put_back(b, row, false);
        b->window = b->n_in_flight > 1 ? b->n_in_flight : 1;
        return STATUS_OK;
    }
    b->stalled = false;
    if (b->window < o.window) b->window++;
    return row_finish(b, row);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void row_send(struct batch *b, struct row *row, struct rpc_stream *stream)
{
    if (!row->answer.token_ids) answer_init(&row->answer);
    resume_clear(&row->spec);
    if (row->sent_before) resume_prepare(&row->spec, &row->answer);
    row->in_flight = true;
    struct rpc_bytes bytes = request_spec_pack(&row->spec);
    rpc_stream_give(stream, &bytes);
    b->n_in_flight++;
}

// Reads the next row that has no answer into a free place. Sets *row_p to NULL at the end of the input.
static enum status row_read(struct batch *b, struct row **row_p)
{
    struct request_row read;
    bool end;
    *row_p = NULL;
    for (;;) {
        TRY(request_reader_next(&b->reader, &read, &end));
        if (end) return STATUS_OK;
        int number = b->n_read++;
        char *id = row_id(&read);
        if (!id_set_is_marked(&b->ids, id)) {
            *row_p = &b->rows[b->free[--b->n_free]];
            **row_p = (struct row){.spec = read.spec, .id = id, .in_use = true};
            free((*row_p)->spec.id);
            (*row_p)->spec.id = mem_format("%s-%d-%d", b->run_name, (int)(*row_p - b->rows), number);
            return STATUS_OK;
        }
        free(id);
        request_spec_free(&read.spec);
    }
}

// Sends rows until the window is full.
static enum status rows_send(struct batch *b, struct rpc_stream *stream)
{
    while (b->n_in_flight < b->window && b->n_in_flight + b->n_done < b->n_rows) {
        struct row *row = b->n_waiting ? &b->rows[b->waiting[--b->n_waiting]] : NULL;
        if (!row) TRY(row_read(b, &row));
        if (!row) return status_fail(STATUS_INVALID, "%s: the file has changed: it has fewer rows", o.input);
        row_send(b, row, stream);
    }
    return STATUS_OK;
}

static enum status batch_exchange(struct batch *b, struct rpc_stream *stream)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && b->n_done < b->n_rows) {
        if (b->refused && !b->n_in_flight) {
            pause_ms(PAUSE_MS); // other clients fill the queue, or the router serves nothing
            batch_draw(b, false);
        }
        struct rpc_bytes bytes = {0};
        status = rows_send(b, stream);
        if (status == STATUS_OK) status = rpc_stream_read(stream, &bytes);
        if (status == STATUS_OK && !bytes.data)
            status = status_fail(STATUS_UNAVAILABLE, "%s ended the call before the last answer", o.remote.server);
        if (status != STATUS_OK) break;
        Forepack__V1__GenerateResponse *m = proto_unpack(&forepack__v1__generate_response__descriptor, bytes.data,
                                                         bytes.size, PROTO_ANSWER_MEMORY_MAX, NULL);
        rpc_bytes_free(&bytes);
        if (!m) return status_fail(STATUS_INTERNAL, "%s sent a message that cannot be unpacked", o.remote.server);
        status = batch_handle_response(b, m);
        forepack__v1__generate_response__free_unpacked(m, NULL);
    }
    return status;
}

// Makes one GenerateMany call, until the last answer or a failure. After a failure, the rows in flight are put back on
// the stack of waiting rows.
static enum status batch_call(struct batch *b)
{
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    b->n_calls++;
    b->refused = false;
    TRY(remote_open(&o.remote, &channel));
    enum status status = rpc_stream_open(channel, "/forepack.v1.Inference/GenerateMany", 0, false, &stream);
    if (status == STATUS_OK) {
        status = batch_exchange(b, stream);
        rpc_stream_close(stream);
    }
    rpc_channel_close(channel);
    for (int i = (int)o.window - 1; i >= 0; i--)
        if (b->rows[i].in_flight) row_put_back(b, &b->rows[i], false);
    return status;
}

// Repeats the call at the next server when the router is lost. Pauses when all servers were lost one after another.
static enum status batch_call_until_done(struct batch *b)
{
    for (int wait_ms = PAUSE_MS, losses = 0;;) {
        enum status status = batch_call(b);
        if (!remote_is_lost(status)) return status;
        if (!b->trouble_us) { // the router has served since the last loss
            wait_ms = PAUSE_MS;
            losses = 0;
        }
        losses++;
        if (!trouble_may_wait(b, status_message()) && losses >= remote_servers(&o.remote)) return status;
        o.remote.turn++;
        if (losses % remote_servers(&o.remote) != 0) continue;
        pause_ms(wait_ms);
        wait_ms = 2 * wait_ms < RECONNECT_MAX_MS ? 2 * wait_ms : RECONNECT_MAX_MS;
    }
}

// Checks before the first row that a router answers. If none does, the command fails instead of waiting, because the
// address is probably wrong.
static enum status router_find(void)
{
    Forepack__V1__GetClusterInfoRequest request = FOREPACK__V1__GET_CLUSTER_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/GetClusterInfo", &request.base,
                    &forepack__v1__cluster_info__descriptor, &answer));
    protobuf_c_message_free_unpacked(answer, NULL);
    return STATUS_OK;
}

static enum status batch_send(struct batch *b, const struct request_spec *defaults)
{
    b->window = (int)o.window;
    b->rows = mem_alloc_array((size_t)o.window, sizeof *b->rows);
    b->waiting = mem_alloc_array((size_t)o.window, sizeof *b->waiting);
    b->free = mem_alloc_array((size_t)o.window, sizeof *b->free);
    for (int i = (int)o.window - 1; i >= 0; i--)
        b->free[b->n_free++] = i;
    TRY(request_reader_open(&b->reader, o.input, defaults));
    b->started_us = clock_now_us();
    enum status status = router_find();
    if (status == STATUS_OK) status = batch_call_until_done(b);
    batch_draw(b, true);
    return status;
}

// Syncs the output, so that written answers survive a crash of the machine. Pipes and devices cannot be synced.
static enum status output_sync(struct batch *b)
{
    return b->lock < 0 || fsync(fileno(b->output)) == 0 ? STATUS_OK : output_fail(o.output);
}

static void batch_fini(struct batch *b)
{
    for (int i = 0; b->rows && i < o.window; i++)
        if (b->rows[i].in_use) row_free(b, &b->rows[i]);
    free(b->rows);
    free(b->free);
    free(b->waiting);
    request_reader_close(&b->reader);
    if (b->output) fclose(b->output);
    if (b->lock >= 0) close(b->lock);
    id_set_fini(&b->ids);
}

int command_batch(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack batch --input FILE --output FILE [--server HOST:PORT,...] [options]\n"
                 "Sends many requests over one call. A second run sends only requests without an answer in the output.",
                 argc, argv, NULL);
    struct batch b = {.lock = -1};
    id_set_init(&b.ids);
    struct request_spec defaults = {0};
    enum status status = STATUS_OK;
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)clock_now_us();
    snprintf(b.run_name, sizeof b.run_name, "%016llx", (unsigned long long)random);
    if (!o.input || !o.output) status = status_fail(STATUS_INVALID, "--input and --output: required");
    if (status == STATUS_OK) status = request_spec_from_flags(options, &defaults);
    if (status == STATUS_OK) status = rows_check(&b, &defaults);
    if (status == STATUS_OK) status = output_open(&b);
    if (status == STATUS_OK && b.n_done) fprintf(stderr, "%d of %d rows already have an answer\n", b.n_done, b.n_rows);
    if (status == STATUS_OK && b.n_done < b.n_rows) {
        rpc_init();
        status = batch_send(&b, &defaults);
        rpc_shutdown();
        if (status == STATUS_OK) status = output_sync(&b);
    }
    int code = status == STATUS_OK ? (b.n_failed ? 1 : 0) : report_failure(status);
    if (remote_is_lost(status) && b.n_calls)
        fprintf(stderr, "%d of %d rows are answered in %s: the same command again continues\n", b.n_done, b.n_rows,
                o.output);
    batch_fini(&b);
    request_spec_free(&defaults);
    options_free(options);
    return code;
}
