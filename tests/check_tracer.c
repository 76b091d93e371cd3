// SPDX-License-Identifier: Apache-2.0
// tracing/tracer: sampling, batches, the bounds of the queue, and collectors that fail.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/tracing/tracer.h"
#include "proto/otlp/trace_service.pb-c.h"
#include "tests/suite.h"
#include "tests/test_port.h"

// --- a collector

static atomic_int calls, spans;
static atomic_int answer_code, failures; // the status of the next `failures` calls
static atomic_int rejected;
static atomic_bool silent; // calls are not answered
static char header[64];

static void on_export(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const char *value = rpc_call_metadata(call, "x-key");
    Otlp__ExportTraceServiceRequest *m = otlp__export_trace_service_request__unpack(NULL, size, bytes);
    int n = m ? (int)m->resource_spans[0]->scope_spans[0]->n_spans : 0;
    if (m) otlp__export_trace_service_request__free_unpacked(m, NULL);
    snprintf(header, sizeof header, "%s", value ? value : "");
    atomic_fetch_add(&calls, 1);
    if (atomic_load(&silent)) return;
    if (atomic_fetch_sub(&failures, 1) > 0) {
        rpc_call_finish(call, (enum status)atomic_load(&answer_code), "not now");
        return;
    }
    atomic_fetch_add(&spans, n);
    Otlp__ExportTracePartialSuccess partial = OTLP__EXPORT_TRACE_PARTIAL_SUCCESS__INIT;
    Otlp__ExportTraceServiceResponse response = OTLP__EXPORT_TRACE_SERVICE_RESPONSE__INIT;
    partial.rejected_spans = atomic_load(&rejected);
    partial.error_message = "too many";
    if (partial.rejected_spans) response.partial_success = &partial;
    uint8_t packed[256];
    size_t packed_size = otlp__export_trace_service_response__pack(&response, packed);
    rpc_call_send(call, packed, packed_size);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static const struct rpc_method methods[] = {
    {.path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export", .on_message = on_export}, {0}};

static struct rpc_server *server;
static int port;
static struct tracer *tracer;

static void collector_open(void)
{
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    ck_assert_int_eq(
        rpc_server_open(&(struct rpc_server_options){.address = address, .methods = methods, .threads = 1}, &server),
        STATUS_OK);
}

static void setup(void)
{
    rpc_init();
    port = test_port();
    atomic_store(&calls, 0);
    atomic_store(&spans, 0);
    atomic_store(&failures, 0);
    atomic_store(&rejected, 0);
    atomic_store(&silent, false);
}

static void teardown(void)
{
    rpc_server_close(server, 0);
    server = NULL;
    rpc_shutdown();
}

static void tracer_start(const struct tracer_options *changes)
{
    char endpoint[32];
    struct tracer_options options = *changes;
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    options.endpoint = endpoint;
    options.service_name = "test";
    options.server_address = "localhost";
    if (!options.batch_ms) options.batch_ms = 1;
    if (!options.retry_ms) options.retry_ms = 1;
    ck_assert_int_eq(tracer_open(&options, &tracer), STATUS_OK);
}

static void finish_one(void) // two spans
{
    struct trace_context *context = trace_context_create();
    struct trace_record *record = tracer_record(tracer, context, clock_now_us());
    ck_assert_ptr_nonnull(record);
    trace_phase_end(record, TRACE_ADMIT, NULL, clock_now_us());
    record->end_us = clock_now_us();
    tracer_finish(tracer, record);
    free(context);
}

static struct trace_counts counts(void)
{
    struct trace_counts c;
    tracer_get_counts(tracer, &c);
    return c;
}

#define WAIT_FOR(condition)                                                                                            \
    for (int64_t until_us = clock_now_us() + 60000000; !(condition);) {                                                \
        ck_assert_msg(clock_now_us() < until_us, "waited in vain for %s", #condition);                                 \
        usleep(1000);                                                                                                  \
    }

// --- sampling

START_TEST(a_share_of_the_traces_that_begin_here_is_sampled)
{
    tracer_start(&(struct tracer_options){.sample = 0.25});
    struct trace_context *none = trace_context_create();
    int sampled = 0, n = 4000;
    for (int i = 0; i < n; i++) {
        struct trace_record *record = tracer_record(tracer, none, 1);
        if (!record) continue;
        sampled++;
        ck_assert(record->sampled);
        ck_assert_uint_eq(strlen(record->trace_text), 32);
        trace_record_free(record);
    }
    ck_assert_int_gt(sampled, n / 4 - 200);
    ck_assert_int_lt(sampled, n / 4 + 200);
    free(none);
    tracer_close(tracer, 0);
}
END_TEST

START_TEST(a_parent_decides_for_its_requests)
{
    tracer_start(&(struct tracer_options){.sample = 0});
    struct trace_context *context =
        trace_context_read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1");
    struct trace_record *record = tracer_record(tracer, context, 1);
    ck_assert(record->sampled);
    ck_assert_str_eq(record->trace_text, "4bf92f3577b34da6a3ce929d0e0e4736");
    ck_assert_str_eq(record->state, "a=1");
    ck_assert_mem_eq(record->parent_id, context->parent_id, SPAN_ID_BYTES);
    trace_record_free(record);
    context->sampled = false;
    record = tracer_record(tracer, context, 1); // for the log
    ck_assert(!record->sampled);
    tracer_finish(tracer, record);
    memset(context->trace_id, 0, sizeof context->trace_id);
    ck_assert_ptr_null(tracer_record(tracer, context, 1));
    free(context);
    tracer_close(tracer, 0);
}
END_TEST

START_TEST(requests_of_one_call_share_a_trace)
{
    tracer_start(&(struct tracer_options){.sample = 1});
    struct trace_context *context = trace_context_create();
    tracer_begin(tracer, context);
    struct trace_record *a = tracer_record(tracer, context, 1), *b = tracer_record(tracer, context, 1);
    ck_assert_str_eq(a->trace_text, b->trace_text);
    ck_assert(a->span_id != b->span_id);
    trace_record_free(a);
    trace_record_free(b);
    free(context);
    tracer_close(tracer, 0);
}
END_TEST

// --- sending

START_TEST(spans_are_sent_with_the_headers)
{
    collector_open();
    tracer_start(&(struct tracer_options){.sample = 1, .headers = "# a comment\n\nx-key: secret value \r\n"});
    finish_one();
    WAIT_FOR(counts().sent == 2);
    ck_assert_int_eq(spans, 2);
    ck_assert_str_eq(header, "secret value");
    tracer_close(tracer, 1000);
}
END_TEST

START_TEST(a_full_batch_does_not_wait)
{
    collector_open();
    tracer_start(&(struct tracer_options){.sample = 1, .batch_ms = 3600000});
    for (int i = 0; i < 512; i++)
        finish_one();
    WAIT_FOR(counts().sent == 1024);
    ck_assert_int_eq(calls, 1);
    finish_one();
    tracer_close(tracer, 60000); // sends the rest
    ck_assert_int_eq(spans, 1026);
}
END_TEST

START_TEST(a_busy_collector_is_asked_again)
{
    collector_open();
    atomic_store(&answer_code, STATUS_UNAVAILABLE);
    atomic_store(&failures, 3);
    tracer_start(&(struct tracer_options){.sample = 1});
    finish_one();
    WAIT_FOR(counts().sent == 2);
    ck_assert_int_eq(calls, 4);
    tracer_close(tracer, 1000);
}
END_TEST

START_TEST(a_refusal_is_final)
{
    collector_open();
    atomic_store(&answer_code, STATUS_DENIED);
    atomic_store(&failures, 1);
    tracer_start(&(struct tracer_options){.sample = 1});
    finish_one();
    WAIT_FOR(counts().dropped[TRACE_DROP_REFUSED] == 2);
    finish_one();
    WAIT_FOR(counts().sent == 2);
    ck_assert_int_eq(calls, 2);
    tracer_close(tracer, 1000);
}
END_TEST

START_TEST(a_partial_refusal_is_counted)
{
    collector_open();
    atomic_store(&rejected, 1);
    tracer_start(&(struct tracer_options){.sample = 1});
    finish_one();
    WAIT_FOR(counts().sent == 1);
    ck_assert_uint_eq(counts().dropped[TRACE_DROP_REFUSED], 1);
    atomic_store(&rejected, 1000); // more than were sent
    finish_one();
    WAIT_FOR(counts().dropped[TRACE_DROP_REFUSED] == 3);
    ck_assert_uint_eq(counts().sent, 1);
    tracer_close(tracer, 1000);
}
END_TEST

START_TEST(without_a_collector_the_queue_is_bounded)
{
    tracer_start(&(struct tracer_options){.sample = 1, .queue_requests = 8});
    for (int i = 0; i < 1000; i++)
        finish_one();
    ck_assert_uint_ge(counts().dropped[TRACE_DROP_QUEUE], 2 * (1000 - 8 - 512));
    tracer_close(tracer, 0); // immediately, although a batch waits to be sent again
}
END_TEST

START_TEST(a_collector_that_comes_up_gets_what_waits)
{
    tracer_start(&(struct tracer_options){.sample = 1});
    finish_one();
    usleep(20000); // some attempts; the test holds however many there are
    collector_open();
    WAIT_FOR(counts().sent == 2);
    tracer_close(tracer, 1000);
}
END_TEST

static void *close_tracer(void *arg)
{
    tracer_close(tracer, 60000);
    return NULL;
}

START_TEST(the_end_waits_for_a_collector_that_comes_up)
{
    tracer_start(&(struct tracer_options){.sample = 1, .batch_ms = 3600000, .retry_ms = 3600000});
    finish_one();
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, close_tracer, NULL), 0);
    usleep(20000); // some attempts; the test holds however many there are
    collector_open();
    pthread_join(thread, NULL);
    ck_assert_int_eq(spans, 2);
}
END_TEST

START_TEST(a_silent_collector_does_not_hold_up_the_end)
{
    collector_open();
    atomic_store(&silent, true);
    tracer_start(&(struct tracer_options){.sample = 1});
    finish_one();
    WAIT_FOR(atomic_load(&calls) == 1);
    finish_one();
    int64_t start_us = clock_now_us();
    tracer_close(tracer, 50);
    ck_assert_int_lt(clock_now_us() - start_us, 9000000); // the call itself may take ten seconds
}
END_TEST

// --- options

START_TEST(wrong_options_are_refused)
{
    static const char *const headers[] = {"no colon", "X-Key: 1", "grpc-timeout: 1", "key-bin: 1", "a: \x01"};
    struct tracer_options options = {.endpoint = "http://127.0.0.1:4317", .service_name = "a", .server_address = "b"};
    ck_assert_int_eq(tracer_open(&options, &tracer), STATUS_INVALID);
    options.endpoint = "127.0.0.1";
    ck_assert_int_eq(tracer_open(&options, &tracer), STATUS_INVALID);
    options.endpoint = "127.0.0.1:4317";
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        options.headers = headers[i];
        ck_assert_msg(tracer_open(&options, &tracer) == STATUS_INVALID, "%s", headers[i]);
    }
    options.headers = NULL;
    options.tls = &(struct rpc_tls){.ca = "/nonexistent"};
    ck_assert_int_ne(tracer_open(&options, &tracer), STATUS_OK);
}
END_TEST

SUITE("tracer")
{
    NO_FORK(); // C-core's threads
    FIXTURE(setup, teardown);
    TEST(a_share_of_the_traces_that_begin_here_is_sampled);
    TEST(a_parent_decides_for_its_requests);
    TEST(requests_of_one_call_share_a_trace);
    TEST(spans_are_sent_with_the_headers);
    TEST(a_full_batch_does_not_wait);
    TEST(a_busy_collector_is_asked_again);
    TEST(a_refusal_is_final);
    TEST(a_partial_refusal_is_counted);
    TEST(without_a_collector_the_queue_is_bounded);
    TEST(a_collector_that_comes_up_gets_what_waits);
    TEST(the_end_waits_for_a_collector_that_comes_up);
    TEST(a_silent_collector_does_not_hold_up_the_end);
    TEST(wrong_options_are_refused);
}
