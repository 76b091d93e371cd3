// SPDX-License-Identifier: Apache-2.0
#include "lib/tracing/tracer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/hash.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "lib/base/version.h"
#include "lib/messages/unpack.h"
#include "lib/tracing/otlp.h"
#include "proto/otlp/trace_service.pb-c.h"

#define EXPORT_METHOD "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

enum { BATCH_REQUESTS = 512, BATCH_BYTES = 2 << 20, BATCH_MS = 1000, QUEUE_REQUESTS = 8192 };
enum {
    CALL_MS = 10000,
    STOP_RETRY_MS = 50,
    RETRY_MS = 1000,
    RETRY_MS_MAX = 16000,
    BATCH_RETRY_MS = 30000,
    LOG_MS = 60000
};
enum { ANSWER_MEMORY_MAX = 1 << 20 };

struct tracer {
    // Constant members.
    struct rpc_channel *channel;
    struct otlp_source source; // the thread writes its wall_offset_us
    char *service_name, *server_address, *endpoint, instance_id[17], host_name[65];
    uint64_t sampled_below; // limit of the last 8 bytes of a trace id; UINT64_MAX: all traces
    int64_t batch_us, retry_us;
    int queue_max;
    struct hash_key id_keys[2];

    atomic_uint_fast64_t last_id;                    // relaxed, like the counts: they order nothing
    atomic_uint_fast64_t sent, dropped[TRACE_DROPS]; // spans
    int64_t log_due_us[TRACE_DROPS];                 // used only by the thread: nothing is logged before this time
    struct otlp_buffer message;                      // used only by the tracer's thread

    pthread_t thread;
    pthread_mutex_t lock; // guards the members below
    pthread_cond_t changed;
    struct trace_record *first, **end; // the queue
    int n_queued;
    int64_t queued_us; // arrival of the first queued record
    bool stopping, ended;
    int64_t stop_us;           // INT64_MAX, or the time at which the thread drops the rest
    struct rpc_stream *stream; // stream of the current call
};

// --- ids

// Returns a random number, never 0: a keyed hash of a counter.
static uint64_t id_next(struct tracer *tracer, int key)
{
    uint64_t id =
        hash_number(&tracer->id_keys[key], atomic_fetch_add_explicit(&tracer->last_id, 1, memory_order_relaxed));
    return id ? id : 1;
}

void tracer_begin(struct tracer *tracer, struct trace_context *context)
{
    if (trace_context_has_trace(context)) return;
    const uint64_t id[2] = {id_next(tracer, 0), id_next(tracer, 1)};
    memcpy(context->trace_id, id, sizeof context->trace_id);
    context->sampled = tracer->sampled_below == UINT64_MAX || id[1] < tracer->sampled_below;
}

static struct trace_record *record_create(struct tracer *tracer, const struct trace_context *context, int64_t start_us)
{
    struct trace_record *record = mem_alloc(sizeof *record);
    memcpy(record->trace_id, context->trace_id, sizeof record->trace_id);
    memcpy(record->parent_id, context->parent_id, sizeof record->parent_id);
    record->span_id = id_next(tracer, 0);
    record->sampled = context->sampled;
    record->server_port = context->server_port;
    record->start_us = start_us;
    for (int i = 0; i < TRACE_ID_BYTES; i++) {
        static const char digits[] = "0123456789abcdef";
        record->trace_text[2 * i] = digits[record->trace_id[i] >> 4];
        record->trace_text[2 * i + 1] = digits[record->trace_id[i] & 15];
    }
    return record;
}

static bool has_parent(const struct trace_context *context)
{
    static const uint8_t none[SPAN_ID_BYTES];
    return memcmp(context->parent_id, none, sizeof none) != 0;
}

struct trace_record *tracer_record(struct tracer *tracer, const struct trace_context *context, int64_t start_us)
{
    struct trace_context begun = {.server_port = context->server_port};
    if (!trace_context_has_trace(context)) {
        tracer_begin(tracer, &begun);
        return begun.sampled ? record_create(tracer, &begun, start_us) : NULL;
    }
    if (!context->sampled && !has_parent(context)) return NULL;
    struct trace_record *record = record_create(tracer, context, start_us);
    if (context->state[0]) record->state = mem_string(context->state);
    return record;
}

// --- the queue

static void count(atomic_uint_fast64_t *counter, int n)
{
    atomic_fetch_add_explicit(counter, (uint64_t)n, memory_order_relaxed);
}

// Queues a record. Wakes the thread at the first record, whose age decides how long the thread waits, and when a batch
// is full. Returns false if the queue is full.
static bool queue_add(struct tracer *tracer, struct trace_record *record)
{
    pthread_mutex_lock(&tracer->lock);
    bool fits = tracer->n_queued < tracer->queue_max;
    if (fits) {
        if (!tracer->n_queued++) tracer->queued_us = record->end_us;
        *tracer->end = record;
        tracer->end = &record->next;
        if (tracer->n_queued == 1 || tracer->n_queued == BATCH_REQUESTS) pthread_cond_signal(&tracer->changed);
    }
    pthread_mutex_unlock(&tracer->lock);
    return fits;
}

void tracer_finish(struct tracer *tracer, struct trace_record *record)
{
    if (record->sampled && queue_add(tracer, record)) return;
    if (record->sampled) count(&tracer->dropped[TRACE_DROP_QUEUE], otlp_span_count(record));
    trace_record_free(record);
}

// Removes at most a batch from the queue. The lock is held.
static struct trace_record *queue_take(struct tracer *tracer)
{
    struct trace_record *first = tracer->first, **end = &tracer->first;
    int n = 0;
    for (; *end && n < BATCH_REQUESTS; n++)
        end = &(*end)->next;
    struct trace_record *rest = *end;
    *end = NULL;
    tracer->first = rest;
    if (!rest) tracer->end = &tracer->first;
    tracer->n_queued -= n;
    tracer->queued_us = clock_now_us(); // an upper bound: the remaining records came earlier
    return first;
}

// --- one call. The tracer's thread runs all functions from here on

// Returns the time until which the thread works on a batch that it began at `start_us`.
static int64_t give_up_us(struct tracer *tracer, int64_t start_us)
{
    pthread_mutex_lock(&tracer->lock);
    int64_t stop_us = tracer->stop_us, until_us = start_us + BATCH_RETRY_MS * 1000;
    pthread_mutex_unlock(&tracer->lock);
    return stop_us < until_us ? stop_us : until_us;
}

static void set_stream(struct tracer *tracer, struct rpc_stream *stream)
{
    pthread_mutex_lock(&tracer->lock);
    tracer->stream = stream;
    pthread_mutex_unlock(&tracer->lock);
}

// Returns true if this kind may be logged: at most once a minute.
static bool may_log(struct tracer *tracer, enum trace_drop drop)
{
    int64_t now_us = clock_now_us();
    if (now_us < tracer->log_due_us[drop]) return false;
    tracer->log_due_us[drop] = now_us + LOG_MS * 1000;
    return true;
}

// Handles the answer of a collector that accepted the call. The collector may have refused some of the spans and may
// say why.
static void answer_read(struct tracer *tracer, const struct rpc_bytes *answer, int n_spans)
{
    Otlp__ExportTraceServiceResponse *m = proto_unpack(&otlp__export_trace_service_response__descriptor, answer->data,
                                                       answer->size, ANSWER_MEMORY_MAX, NULL);
    const Otlp__ExportTracePartialSuccess *partial = m ? m->partial_success : NULL;
    int64_t refused = partial && partial->rejected_spans > 0 ? partial->rejected_spans : 0;
    if (refused > n_spans) refused = n_spans;
    count(&tracer->sent, n_spans - (int)refused);
    count(&tracer->dropped[TRACE_DROP_REFUSED], (int)refused);
    if (partial && (refused || *partial->error_message) && may_log(tracer, TRACE_DROP_REFUSED))
        log_event(LOG_WARN, "trace_spans_refused", LOG_FIELD("collector", tracer->endpoint),
                  LOG_FIELD("spans", refused), LOG_FIELD("reason", partial->error_message));
    if (m) otlp__export_trace_service_response__free_unpacked(m, NULL);
}

static enum status call_read(struct rpc_stream *stream, struct rpc_bytes *answer)
{
    struct rpc_bytes rest = {0};
    TRY(rpc_stream_read(stream, answer));
    enum status status = rpc_stream_read(stream, &rest); // reads the status of the call
    rpc_bytes_free(&rest);
    if (status != STATUS_OK) rpc_bytes_free(answer);
    return status;
}

static enum status export_once(struct tracer *tracer, int n_spans, int64_t until_us)
{
    struct rpc_stream *stream;
    struct rpc_bytes answer = {0};
    int64_t left_ms = (until_us - clock_now_us()) / 1000;
    if (left_ms <= 0) return status_fail(STATUS_DEADLINE, "the collector did not accept the spans in time");
    TRY(rpc_stream_open(tracer->channel, EXPORT_METHOD, left_ms < CALL_MS ? left_ms : CALL_MS, false, &stream));
    set_stream(tracer, stream);
    rpc_stream_send(stream, tracer->message.data, tracer->message.n);
    rpc_stream_half_close(stream);
    enum status status = call_read(stream, &answer);
    set_stream(tracer, NULL);
    rpc_stream_close(stream);
    if (status == STATUS_OK) answer_read(tracer, &answer, n_spans);
    rpc_bytes_free(&answer);
    return status;
}

// --- batches

// Returns true if the call may succeed when it is repeated.
static bool is_passing(enum status status)
{
    return status == STATUS_UNAVAILABLE || status == STATUS_DEADLINE || status == STATUS_CANCELLED ||
           status == STATUS_EXHAUSTED;
}

// Waits before a batch that was begun at `start_us` is sent again. While the tracer stops, it waits only for a short
// time. Returns false if the time of the batch is up.
static bool retry_wait(struct tracer *tracer, int64_t start_us, int64_t pause_us)
{
    int64_t next_us = clock_now_us() + pause_us;
    pthread_mutex_lock(&tracer->lock);
    bool waits = next_us < start_us + BATCH_RETRY_MS * 1000;
    while (waits && !tracer->stopping && monotonic_cond_wait(&tracer->changed, &tracer->lock, next_us)) {
    }
    if (tracer->stopping) {
        monotonic_cond_wait(&tracer->changed, &tracer->lock, clock_now_us() + STOP_RETRY_MS * 1000);
        waits = clock_now_us() < tracer->stop_us;
    }
    pthread_mutex_unlock(&tracer->lock);
    return waits;
}

static enum status export_message(struct tracer *tracer, int n_spans)
{
    int64_t start_us = clock_now_us(), pause_us = tracer->retry_us;
    for (;;) {
        enum status status = export_once(tracer, n_spans, give_up_us(tracer, start_us));
        if (status == STATUS_OK || !is_passing(status)) return status;
        if (!retry_wait(tracer, start_us, pause_us)) return status;
        if (pause_us < RETRY_MS_MAX * 1000) pause_us *= 2;
    }
}

static void message_drop(struct tracer *tracer, enum status status, int n_spans)
{
    enum trace_drop drop = is_passing(status) ? TRACE_DROP_UNREACHABLE : TRACE_DROP_REFUSED;
    count(&tracer->dropped[drop], n_spans);
    if (may_log(tracer, drop))
        log_event(LOG_WARN, "trace_spans_dropped", LOG_FIELD("collector", tracer->endpoint),
                  LOG_FIELD("spans", n_spans), LOG_FIELD("status", status_name(status)), LOG_REASON);
}

static int64_t wall_offset_us(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)wall.tv_sec * 1000000 + wall.tv_nsec / 1000 - clock_now_us();
}

static void records_free(struct trace_record *first, const struct trace_record *end)
{
    for (struct trace_record *next; first != end; first = next) {
        next = first->next;
        trace_record_free(first);
    }
}

static void batch_export(struct tracer *tracer, struct trace_record *records)
{
    tracer->source.wall_offset_us = wall_offset_us();
    while (records) {
        int n_spans;
        tracer->message.n = 0;
        struct trace_record *rest = otlp_encode(&tracer->message, &tracer->source, records, BATCH_BYTES, &n_spans);
        records_free(records, rest);
        records = rest;
        enum status status = export_message(tracer, n_spans);
        if (status != STATUS_OK) message_drop(tracer, status, n_spans);
    }
}

// Waits for a full batch, or for a part of a batch when the first record is old enough or the tracer stops. Returns
// NULL if the queue is empty and the tracer stops.
static struct trace_record *batch_wait(struct tracer *tracer)
{
    pthread_mutex_lock(&tracer->lock);
    while (!tracer->stopping && tracer->n_queued < BATCH_REQUESTS) {
        int64_t due_us = tracer->n_queued ? tracer->queued_us + tracer->batch_us : INT64_MAX;
        if (!monotonic_cond_wait(&tracer->changed, &tracer->lock, due_us)) break;
    }
    struct trace_record *records = queue_take(tracer);
    pthread_mutex_unlock(&tracer->lock);
    return records;
}

static void *tracer_thread(void *arg)
{
    struct tracer *tracer = arg;
    bool stopping = false;
    while (!stopping) {
        struct trace_record *records = batch_wait(tracer);
        if (records) {
            batch_export(tracer, records);
        } else {
            pthread_mutex_lock(&tracer->lock);
            stopping = tracer->stopping;
            tracer->ended = stopping;
            pthread_cond_broadcast(&tracer->changed);
            pthread_mutex_unlock(&tracer->lock);
        }
    }
    return NULL;
}

// --- open and close

// Adds one line "name: value". Skips blank lines and lines that start with '#'.
static enum status header_add(struct rpc_channel *channel, char *line, int number)
{
    line += strspn(line, " \t\r");
    if (!*line || *line == '#') return STATUS_OK;
    char *colon = strchr(line, ':');
    if (!colon) return status_fail(STATUS_INVALID, "line %d: must be 'name: value'", number);
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t n = strlen(value); n && strchr(" \t\r", value[n - 1]); n--)
        value[n - 1] = '\0';
    return status_context(rpc_channel_add_header(channel, line, value), "line %d", number);
}

static enum status headers_add(struct rpc_channel *channel, const char *headers)
{
    enum status status = STATUS_OK;
    char *text = mem_string(headers ? headers : ""), *rest = text;
    int number = 0;
    for (char *line; status == STATUS_OK && (line = strsep(&rest, "\n"));)
        status = header_add(channel, line, ++number);
    explicit_bzero(text, headers ? strlen(headers) : 0);
    free(text);
    return status;
}

static uint64_t sampled_below(double share)
{
    return share >= 1 ? UINT64_MAX : (uint64_t)(share * 18446744073709551616.0);
}

static void source_init(struct tracer *tracer, const struct tracer_options *options)
{
    struct utsname host;
    if (uname(&host) == 0) snprintf(tracer->host_name, sizeof tracer->host_name, "%s", host.nodename);
    snprintf(tracer->instance_id, sizeof tracer->instance_id, "%016" PRIx64, id_next(tracer, 0));
    tracer->service_name = mem_string(options->service_name);
    tracer->server_address = mem_string(options->server_address);
    tracer->source = (struct otlp_source){.service_name = tracer->service_name,
                                          .version = FOREPACK_VERSION,
                                          .instance_id = tracer->instance_id,
                                          .host_name = tracer->host_name,
                                          .server_address = tracer->server_address};
}

enum status tracer_open(const struct tracer_options *options, struct tracer **tracer_p)
{
    struct rpc_channel *channel;
    if (strstr(options->endpoint, "://"))
        return status_fail(STATUS_INVALID, "'%s': must be HOST:PORT, without a scheme", options->endpoint);
    TRY(rpc_channel_open_tls(options->endpoint, options->tls, &channel));
    enum status status = headers_add(channel, options->headers);
    if (status != STATUS_OK) {
        rpc_channel_close(channel);
        return status;
    }
    struct tracer *tracer = mem_alloc(sizeof *tracer);
    tracer->channel = channel;
    tracer->endpoint = mem_string(options->endpoint);
    tracer->sampled_below = sampled_below(options->sample);
    tracer->batch_us = (options->batch_ms ? options->batch_ms : BATCH_MS) * 1000;
    tracer->retry_us = (options->retry_ms ? options->retry_ms : RETRY_MS) * 1000;
    tracer->queue_max = options->queue_requests ? options->queue_requests : QUEUE_REQUESTS;
    tracer->id_keys[0] = hash_key_random();
    tracer->id_keys[1] = hash_key_random();
    source_init(tracer, options);
    tracer->end = &tracer->first;
    tracer->stop_us = INT64_MAX;
    pthread_mutex_init(&tracer->lock, NULL);
    monotonic_cond_init(&tracer->changed);
    thread_start(&tracer->thread, "tracer", tracer_thread, tracer);
    *tracer_p = tracer;
    return STATUS_OK;
}

static void tracer_stop(struct tracer *tracer, int64_t stop_us)
{
    pthread_mutex_lock(&tracer->lock);
    tracer->stopping = true;
    tracer->stop_us = stop_us;
    pthread_cond_broadcast(&tracer->changed);
    while (!tracer->ended && monotonic_cond_wait(&tracer->changed, &tracer->lock, stop_us)) {
    }
    if (tracer->stream) rpc_stream_cancel(tracer->stream); // the time is up
    pthread_mutex_unlock(&tracer->lock);
    pthread_join(tracer->thread, NULL);
}

void tracer_close(struct tracer *tracer, int64_t flush_ms)
{
    if (!tracer) return;
    tracer_stop(tracer, clock_now_us() + flush_ms * 1000);
    rpc_channel_close(tracer->channel);
    pthread_cond_destroy(&tracer->changed);
    pthread_mutex_destroy(&tracer->lock);
    free(tracer->message.data);
    free(tracer->service_name);
    free(tracer->server_address);
    free(tracer->endpoint);
    free(tracer);
}

void tracer_get_counts(struct tracer *tracer, struct trace_counts *counts)
{
    counts->sent = atomic_load_explicit(&tracer->sent, memory_order_relaxed);
    for (int i = 0; i < TRACE_DROPS; i++)
        counts->dropped[i] = atomic_load_explicit(&tracer->dropped[i], memory_order_relaxed);
}
