// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/load_generator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/progress.h"
#include "cli/remote.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

enum { TICK_US = 50000 }; // time between two looks at the timeouts and two updates of the progress bar

// The tokens of a request that has not ended, for a resume at another server.
struct load_tokens {
    uint32_t *ids; // [n] owned
    int n, capacity;
    uint64_t mark; // Chunk.mark
};

struct load_run {
    const struct load *load;
    struct load_result *result;
    struct remote remote;        // the reading thread changes `turn`
    struct rpc_channel *channel; // the reading thread and load_run()
    struct rpc_stream *stream;   // guarded by the mutex; only the reading thread replaces it
    struct load_tokens *tokens;  // [load->n] guarded by the mutex; NULL: there is only one server
    int64_t started_us;
    size_t run_length;
    pthread_mutex_t mutex; // guards the result and the fields below
    pthread_cond_t ended;  // signalled when a request or the stream ends
    int n_sent, n_ended, n_failed;
    bool lost; // the stream ended
    bool done; // all requests have ended, or will not be sent: a stream that ends now is not lost
};

char *load_id(const char *run, int i)
{
    return mem_format("%s-%d", run, i);
}

static int64_t elapsed_us(const struct load_run *r)
{
    return clock_now_us() - r->started_us;
}

// --- answers: the reading thread

// Returns the record of a request that has not ended, or NULL for other ids.
static struct load_record *run_find_record(const struct load_run *r, const char *id)
{
    if (strncmp(id, r->load->run, r->run_length) != 0 || id[r->run_length] != '-') return NULL;
    char *end;
    long i = strtol(id + r->run_length + 1, &end, 10);
    if (*end || i < 0 || i >= r->n_sent) return NULL;
    struct load_record *record = &r->result->records[i];
    return record->done_us < 0 ? record : NULL; // answers of aborted requests are ignored
}

static void run_end_request(struct load_run *r, struct load_record *record, enum load_end end, int code, int64_t now_us)
{
    record->end = end;
    record->code = code;
    record->done_us = now_us;
    r->n_ended++;
    r->n_failed += end != LOAD_COMPLETE;
    pthread_cond_signal(&r->ended);
}

static void tokens_add(struct load_tokens *tokens, const Forepack__V1__Chunk *chunk)
{
    if (chunk->mark) tokens->mark = chunk->mark;
    for (size_t i = 0; i < chunk->n_token_ids; i++) {
        MEM_GROW(tokens->ids, tokens->n, tokens->capacity);
        tokens->ids[tokens->n++] = chunk->token_ids[i];
    }
}

static void run_handle_chunk(struct load_run *r, struct load_record *record, const Forepack__V1__Chunk *chunk,
                             int64_t now_us)
{
    if (!chunk->n_token_ids) return;
    if (record->first_us < 0)
        record->first_us = now_us;
    else
        samples_add(&r->result->itl_ms, (double)(now_us - record->last_us) / 1000);
    record->last_us = now_us;
    record->tokens += (int)chunk->n_token_ids;
    if (r->tokens) tokens_add(&r->tokens[record - r->result->records], chunk);
}

static bool run_is_late(const struct load_run *r, const struct load_record *record, int64_t now_us)
{
    return r->load->timeout_us && now_us - record->due_us >= r->load->timeout_us;
}

static void run_handle_completion(struct load_run *r, struct load_record *record, const Forepack__V1__Completion *m,
                                  int64_t now_us)
{
    if (m->usage) {
        record->prompt_tokens = (int)m->usage->prompt_tokens;
        record->scored_tokens = (int)m->usage->scored_tokens;
        record->kept_tokens = (int)m->usage->kept_tokens;
        record->cached_tokens = (int)m->usage->cached_tokens;
    }
    bool failed = m->error || strcmp(m->finish_reason, "cancelled") == 0;
    if (failed && !*r->result->error)
        snprintf(r->result->error, sizeof r->result->error, "%s", m->error ? m->error->message : m->finish_reason);
    // An answer with no tokens is complete too; its first token time is its end.
    if (!failed && record->first_us < 0) record->first_us = record->last_us = now_us;
    int code = m->error ? (int)m->error->code : failed ? rpc_code(STATUS_CANCELLED) : 0;
    bool late = !failed && run_is_late(r, record, now_us); // the aborting thread has not looked since it became late
    run_end_request(r, record, failed ? LOAD_ERROR : late ? LOAD_TIMEOUT : LOAD_COMPLETE, code, now_us);
}

static void run_handle_message(struct load_run *r, const struct rpc_bytes *bytes, int64_t now_us)
{
    Forepack__V1__GenerateResponse *m = forepack__v1__generate_response__unpack(NULL, bytes->size, bytes->data);
    if (!m) return;
    pthread_mutex_lock(&r->mutex);
    struct load_record *record = run_find_record(r, m->request_id);
    if (record && m->kind_case == FOREPACK__V1__GENERATE_RESPONSE__KIND_CHUNK)
        run_handle_chunk(r, record, m->chunk, now_us);
    else if (record && m->kind_case == FOREPACK__V1__GENERATE_RESPONSE__KIND_COMPLETION)
        run_handle_completion(r, record, m->completion, now_us);
    pthread_mutex_unlock(&r->mutex);
    forepack__v1__generate_response__free_unpacked(m, NULL);
}

// --- a lost router: the reading thread

// Sends a request again, after the tokens that have come. Fields of concatenated messages are merged.
static void run_send_resumed(struct load_run *r, int i)
{
    const struct rpc_bytes *message = &r->load->messages[i];
    const struct load_tokens *tokens = &r->tokens[i];
    Forepack__V1__GenerateRequest more = FOREPACK__V1__GENERATE_REQUEST__INIT;
    Forepack__V1__Resume resume = FOREPACK__V1__RESUME__INIT;
    resume.token_ids = tokens->ids;
    resume.n_token_ids = (size_t)tokens->n;
    resume.mark = tokens->mark;
    more.resume = &resume;
    size_t more_bytes = forepack__v1__generate_request__get_packed_size(&more);
    uint8_t *bytes = mem_alloc(message->size + more_bytes);
    memcpy(bytes, message->data, message->size);
    forepack__v1__generate_request__pack(&more, bytes + message->size);
    rpc_stream_send(r->stream, bytes, message->size + more_bytes);
    free(bytes);
    r->result->resumed++;
}

// Opens a stream to the next server, and continues all requests that have not ended.
static enum status run_reopen(struct load_run *r)
{
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    r->remote.turn++;
    TRY(remote_open(&r->remote, &channel));
    enum status status = rpc_stream_open(channel, "/forepack.v1.Inference/GenerateMany", 0, false, &stream);
    if (status != STATUS_OK) {
        rpc_channel_close(channel);
        return status;
    }
    pthread_mutex_lock(&r->mutex);
    struct rpc_stream *old = r->stream;
    r->stream = stream;
    for (int i = 0; i < r->n_sent; i++)
        if (r->result->records[i].done_us < 0) run_send_resumed(r, i);
    if (r->done) rpc_stream_cancel(stream);
    pthread_mutex_unlock(&r->mutex);
    rpc_stream_close(old);
    rpc_channel_close(r->channel);
    r->channel = channel;
    return STATUS_OK;
}

enum { LOSSES_MAX = 12 }; // servers lost in a row without an answer in between

// Returns true if the load continues at another server.
static bool run_goes_on(struct load_run *r, enum status status, int losses)
{
    pthread_mutex_lock(&r->mutex);
    bool may = r->tokens && !r->done && (status == STATUS_OK || remote_is_lost(status)) && losses <= LOSSES_MAX;
    pthread_mutex_unlock(&r->mutex);
    if (!may) return false;
    remote_pause(&r->remote, losses);
    return run_reopen(r) == STATUS_OK;
}

static void *run_read_answers(void *arg)
{
    struct load_run *r = arg;
    struct rpc_bytes bytes;
    enum status status;
    int losses = 0;
    do {
        while ((status = rpc_stream_read(r->stream, &bytes)) == STATUS_OK && bytes.data) {
            run_handle_message(r, &bytes, elapsed_us(r));
            rpc_bytes_free(&bytes);
            losses = 0;
        }
    } while (run_goes_on(r, status, ++losses));
    int64_t now_us = elapsed_us(r);
    pthread_mutex_lock(&r->mutex);
    r->lost = true;
    if (r->n_ended < r->n_sent && !*r->result->error)
        snprintf(r->result->error, sizeof r->result->error, "%s",
                 status == STATUS_OK ? "the server ended the call early" : status_message());
    for (int i = 0; i < r->n_sent; i++) {
        struct load_record *record = &r->result->records[i];
        if (record->done_us < 0)
            run_end_request(r, record, LOAD_LOST, rpc_code(status == STATUS_OK ? STATUS_UNAVAILABLE : status), now_us);
    }
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

// --- late requests: the aborting thread

static void run_send_abort(const struct load_run *r, char **ids, int n)
{
    Forepack__V1__AbortRequest request = FOREPACK__V1__ABORT_REQUEST__INIT;
    request.request_ids = ids;
    request.n_request_ids = (size_t)n;
    ProtobufCMessage *answer;
    // A failed abort is ignored: the server then continues these requests, as with clients that do not abort.
    if (remote_call(r->load->remote, "/forepack.v1.Inference/Abort", &request.base,
                    &forepack__v1__abort_response__descriptor, &answer) == STATUS_OK)
        protobuf_c_message_free_unpacked(answer, NULL);
}

// The thread that aborts late requests once per tick. It is separate, so that the unary calls do not delay sending and
// reading.
struct load_aborter {
    struct load_run *run;
    bool stop; // guarded by the run's mutex
};

static void *aborter_run(void *arg)
{
    struct load_aborter *aborter = arg;
    struct load_run *r = aborter->run;
    const struct load *load = r->load;
    const struct timespec tick = {.tv_nsec = TICK_US * 1000};
    char **ids = mem_alloc_array((size_t)load->n, sizeof *ids);
    for (bool stop = false; !stop;) {
        nanosleep(&tick, NULL);
        int n = 0;
        pthread_mutex_lock(&r->mutex);
        int64_t now_us = elapsed_us(r);
        for (int i = 0; i < r->n_sent; i++) {
            struct load_record *record = &r->result->records[i];
            if (record->done_us >= 0 || !run_is_late(r, record, now_us)) continue;
            run_end_request(r, record, LOAD_TIMEOUT, 0, now_us);
            ids[n++] = load_id(load->run, i);
        }
        stop = aborter->stop;
        pthread_mutex_unlock(&r->mutex);
        if (n) run_send_abort(r, ids, n);
        for (int i = 0; i < n; i++)
            free(ids[i]);
    }
    free(ids);
    return NULL;
}

// --- requests: the calling thread

// Sends the next request. If due_us is negative, the request is due when it is sent.
static void run_send_next(struct load_run *r, int64_t due_us)
{
    const struct rpc_bytes *message = &r->load->messages[r->n_sent];
    struct load_record *record = &r->result->records[r->n_sent];
    record->sent_us = elapsed_us(r);
    record->due_us = due_us < 0 ? record->sent_us : due_us;
    r->n_sent++;
    rpc_stream_send(r->stream, message->data, message->size);
}

static void run_wait_until(struct load_run *r, int64_t until_us)
{
    int64_t at = r->started_us + until_us;
    const struct timespec time = {.tv_sec = at / 1000000, .tv_nsec = at % 1000000 * 1000};
    pthread_cond_timedwait(&r->ended, &r->mutex, &time);
}

static void run_draw_progress(const struct load_run *r, struct progress *progress, bool last)
{
    const struct load *load = r->load;
    if (!load->label) return;
    progress_draw(progress, r->n_ended, load->n, last, "%s: %d of %d, %d running, %d failed, %.0f s", load->label,
                  r->n_ended, load->n, r->n_sent - r->n_ended, r->n_failed, (double)elapsed_us(r) / 1e6);
}

static void run_send_all(struct load_run *r)
{
    const struct load *load = r->load;
    struct progress progress = {0};
    pthread_mutex_lock(&r->mutex);
    while (r->n_ended < load->n && !r->lost) {
        int64_t now_us = elapsed_us(r), wake_us = now_us + TICK_US;
        while (r->n_sent < load->n) {
            if (load->due_us) {
                int64_t due_us = load->due_us[r->n_sent];
                if (due_us > now_us) {
                    if (due_us < wake_us) wake_us = due_us;
                    break;
                }
                run_send_next(r, due_us);
            } else {
                if (r->n_sent - r->n_ended >= load->concurrency) break;
                run_send_next(r, -1);
            }
        }
        run_draw_progress(r, &progress, false);
        run_wait_until(r, wake_us);
    }
    run_draw_progress(r, &progress, true);
    // Record the requests that were not sent because the stream ended.
    int64_t now_us = elapsed_us(r);
    for (int i = r->n_sent; i < load->n; i++) {
        struct load_record *record = &r->result->records[i];
        record->due_us = load->due_us ? load->due_us[i] : now_us;
        run_end_request(r, record, LOAD_LOST, rpc_code(STATUS_UNAVAILABLE), now_us);
    }
    r->result->seconds = (double)now_us / 1e6;
    r->done = true;
    pthread_mutex_unlock(&r->mutex);
}

static void run_threads(struct load_run *r)
{
    pthread_t reader, aborting;
    struct load_aborter aborter = {.run = r};
    r->started_us = clock_now_us();
    thread_start(&reader, "reader", run_read_answers, r);
    if (r->load->timeout_us) thread_start(&aborting, "aborter", aborter_run, &aborter);
    run_send_all(r);
    if (r->load->timeout_us) {
        pthread_mutex_lock(&r->mutex);
        aborter.stop = true;
        pthread_mutex_unlock(&r->mutex);
        pthread_join(aborting, NULL);
    }
    pthread_mutex_lock(&r->mutex);
    rpc_stream_cancel(r->stream);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(reader, NULL);
}

static void tokens_free(struct load_run *r)
{
    for (int i = 0; r->tokens && i < r->load->n; i++)
        free(r->tokens[i].ids);
    free(r->tokens);
}

enum status load_run(const struct load *load, struct load_result *result)
{
    struct load_run r = {.load = load, .result = result, .remote = *load->remote, .run_length = strlen(load->run)};
    *result = (struct load_result){.n = load->n};
    result->records = mem_alloc_array((size_t)load->n, sizeof *result->records);
    for (int i = 0; i < load->n; i++)
        result->records[i] = (struct load_record){-1, -1, -1, -1, -1, .end = LOAD_LOST};
    TRY(remote_open(&r.remote, &r.channel));
    enum status status = rpc_stream_open(r.channel, "/forepack.v1.Inference/GenerateMany", 0, false, &r.stream);
    if (remote_servers(&r.remote) > 1) r.tokens = mem_alloc_array((size_t)load->n + 1, sizeof *r.tokens);
    if (status == STATUS_OK) {
        pthread_condattr_t monotonic;
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&r.mutex, NULL);
        pthread_cond_init(&r.ended, &monotonic);
        run_threads(&r);
        pthread_cond_destroy(&r.ended);
        pthread_mutex_destroy(&r.mutex);
        pthread_condattr_destroy(&monotonic);
        rpc_stream_close(r.stream);
    }
    rpc_channel_close(r.channel);
    tokens_free(&r);
    return status;
}

void load_result_free(struct load_result *r)
{
    free(r->records);
    samples_free(&r->itl_ms);
    *r = (struct load_result){0};
}
