// SPDX-License-Identifier: Apache-2.0
// tracing/otlp: protobuf-c reads the written message correctly, and the phases of a record.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/tracing/otlp.h"
#include "proto/otlp/trace_service.pb-c.h"
#include "tests/suite.h"

static const struct otlp_source source = {.service_name = "service",
                                          .version = "1.2",
                                          .instance_id = "0123",
                                          .host_name = "host",
                                          .server_address = "127.0.0.1",
                                          .wall_offset_us = 1000000};

static struct trace_record *record_create(void)
{
    struct trace_record *record = mem_alloc(sizeof *record);
    memset(record->trace_id, 0xab, sizeof record->trace_id);
    record->span_id = 0x1122334455667788;
    record->sampled = true;
    record->start_us = 100;
    record->end_us = 900;
    return record;
}

// Returns the record of a prompt that was pruned, and replayed once.
static struct trace_record *whole_record(void)
{
    struct trace_record *r = record_create();
    memset(r->parent_id, 0xcd, sizeof r->parent_id);
    r->state = mem_string("a=1");
    r->server_port = 8000;
    r->operation = "chat";
    r->request_model = r->response_model = "demo";
    r->finish = "stop";
    r->number = 0x9f;
    r->id = mem_string("chatcmpl-1");
    r->tenant = mem_string("acme");
    r->prefill = "speculated";
    strcpy(r->prefill_limit, "keep-at-least:0.5");
    r->first_token_us = 500;
    r->usage = (struct trace_usage){1000, 7, 16, 300, 1000, 992, 1, 200, 20};
    r->request =
        (struct trace_request){.max_tokens = 64, .top_k = 40, .priority = -1, .temperature = 0.5, .top_p = 0.9};
    trace_phase_end(r, TRACE_ADMIT, NULL, 110);
    trace_phase_end(r, TRACE_TOKENISE, NULL, 150);
    trace_phase_end(r, TRACE_QUEUE, NULL, 160);
    trace_phase_end(r, TRACE_QUEUE, NULL, 200);
    trace_phase_end(r, TRACE_SCORE, "spec-1", 300);
    trace_phase_end(r, TRACE_PACK_WAIT, NULL, 320);
    trace_phase_end(r, TRACE_PREFILL, "worker-1", 400);
    trace_phase_end(r, TRACE_PACK_WAIT, NULL, 420);
    trace_phase_end(r, TRACE_PREFILL, "worker-2", 600);
    trace_phase_end(r, TRACE_DECODE, "worker-2", 700);
    trace_phase_end(r, TRACE_DECODE, "worker-2", 900);
    return r;
}

static Otlp__ExportTraceServiceRequest *encode(struct trace_record *records, int wanted_spans)
{
    struct otlp_buffer out = {0};
    int n_spans;
    ck_assert_ptr_null(otlp_encode(&out, &source, records, SIZE_MAX, &n_spans));
    ck_assert_int_eq(n_spans, wanted_spans);
    uint8_t *copy = mem_copy(out.data, out.n);
    Otlp__ExportTraceServiceRequest *m = otlp__export_trace_service_request__unpack(NULL, out.n, copy);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->resource_spans[0]->scope_spans[0]->n_spans, (size_t)wanted_spans);
    free(copy);
    free(out.data);
    return m;
}

static const Otlp__AnyValue *find(Otlp__KeyValue *const *attributes, size_t n, const char *key)
{
    const Otlp__AnyValue *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(attributes[i]->key, key) != 0) continue;
        ck_assert_msg(!found, "%s is there twice", key);
        found = attributes[i]->value;
    }
    return found;
}

static const Otlp__AnyValue *attribute(const Otlp__Span *span, const char *key)
{
    const Otlp__AnyValue *value = find(span->attributes, span->n_attributes, key);
    ck_assert_msg(value != NULL, "%s is not there", key);
    return value;
}

static void ck_text(const Otlp__Span *span, const char *key, const char *wanted)
{
    ck_assert_int_eq(attribute(span, key)->value_case, OTLP__ANY_VALUE__VALUE_STRING_VALUE);
    ck_assert_str_eq(attribute(span, key)->string_value, wanted);
}

static void ck_int(const Otlp__Span *span, const char *key, int64_t wanted)
{
    ck_assert_int_eq(attribute(span, key)->value_case, OTLP__ANY_VALUE__VALUE_INT_VALUE);
    ck_assert_int_eq(attribute(span, key)->int_value, wanted);
}

static void ck_real(const Otlp__Span *span, const char *key, double wanted)
{
    ck_assert_int_eq(attribute(span, key)->value_case, OTLP__ANY_VALUE__VALUE_DOUBLE_VALUE);
    ck_assert(attribute(span, key)->double_value == wanted);
}

START_TEST(the_span_of_a_request_has_its_attributes)
{
    struct trace_record *record = whole_record();
    Otlp__ExportTraceServiceRequest *m = encode(record, 10);
    const Otlp__Span *span = m->resource_spans[0]->scope_spans[0]->spans[0];
    ck_assert_uint_eq(span->trace_id.len, 16);
    ck_assert_mem_eq(span->trace_id.data, record->trace_id, 16);
    ck_assert_mem_eq(span->parent_span_id.data, record->parent_id, 8);
    ck_assert_str_eq(span->trace_state, "a=1");
    ck_assert_str_eq(span->name, "chat demo");
    ck_assert_uint_eq(span->kind, 2);
    ck_assert_uint_eq(span->start_time_unix_nano, 1000100000);
    ck_assert_uint_eq(span->end_time_unix_nano, 1000900000);
    ck_assert_ptr_null(span->status);
    ck_assert_uint_eq(span->flags, 0x301);
    ck_text(span, "gen_ai.operation.name", "chat");
    ck_text(span, "gen_ai.provider.name", "forepack");
    ck_text(span, "gen_ai.request.model", "demo");
    ck_text(span, "gen_ai.response.model", "demo");
    ck_text(span, "gen_ai.response.id", "chatcmpl-1");
    ck_text(span, "server.address", "127.0.0.1");
    ck_int(span, "server.port", 8000);
    ck_int(span, "gen_ai.request.max_tokens", 64);
    ck_int(span, "gen_ai.request.top_k", 40);
    ck_real(span, "gen_ai.request.temperature", 0.5);
    ck_real(span, "gen_ai.request.top_p", 0.9);
    ck_int(span, "gen_ai.usage.input_tokens", 1000);
    ck_int(span, "gen_ai.usage.output_tokens", 7);
    ck_int(span, "gen_ai.usage.cache_read.input_tokens", 16);
    ck_real(span, "gen_ai.response.time_to_first_chunk", 0.0005);
    ck_int(span, "forepack.kept_tokens", 300);
    ck_int(span, "forepack.scored_tokens", 1000);
    ck_int(span, "forepack.score_cached_tokens", 992);
    ck_int(span, "forepack.frozen_tokens", 200);
    ck_int(span, "forepack.recalled_tokens", 20);
    ck_int(span, "forepack.replays", 1);
    ck_int(span, "forepack.priority", -1);
    ck_text(span, "forepack.prefill", "speculated");
    ck_text(span, "forepack.prefill.limit", "keep-at-least:0.5");
    ck_text(span, "forepack.tenant", "acme");
    ck_text(span, "forepack.request", "000000000000009f");
    const Otlp__AnyValue *reasons = attribute(span, "gen_ai.response.finish_reasons");
    ck_assert_int_eq(reasons->value_case, OTLP__ANY_VALUE__VALUE_ARRAY_VALUE);
    ck_assert_uint_eq(reasons->array_value->n_values, 1);
    ck_assert_str_eq(reasons->array_value->values[0]->string_value, "stop");
    otlp__export_trace_service_request__free_unpacked(m, NULL);
    trace_record_free(record);
}
END_TEST

START_TEST(phases_are_spans_without_gaps)
{
    static const char *const names[] = {"admit",   "tokenise",  "queue",   "score", "pack_wait",
                                        "prefill", "pack_wait", "prefill", "decode"};
    static const char *const nodes[] = {NULL, NULL, NULL, "spec-1", NULL, "worker-1", NULL, "worker-2", "worker-2"};
    struct trace_record *record = whole_record();
    Otlp__ExportTraceServiceRequest *m = encode(record, 10);
    Otlp__Span *const *spans = m->resource_spans[0]->scope_spans[0]->spans;
    uint64_t end = spans[0]->start_time_unix_nano;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const Otlp__Span *span = spans[i + 1];
        ck_assert_str_eq(span->name, names[i]);
        ck_assert_uint_eq(span->kind, 1);
        ck_assert_uint_eq(span->start_time_unix_nano, end);
        ck_assert_uint_ge(span->end_time_unix_nano, end);
        ck_assert_mem_eq(span->trace_id.data, record->trace_id, 16);
        ck_assert_mem_eq(span->parent_span_id.data, spans[0]->span_id.data, 8);
        for (size_t k = 0; k <= i; k++)
            ck_assert_mem_ne(span->span_id.data, spans[k]->span_id.data, 8);
        if (nodes[i])
            ck_text(span, "forepack.node", nodes[i]);
        else
            ck_assert_uint_eq(span->n_attributes, 0);
        end = span->end_time_unix_nano;
    }
    ck_assert_uint_eq(end, spans[0]->end_time_unix_nano);
    otlp__export_trace_service_request__free_unpacked(m, NULL);
    trace_record_free(record);
}
END_TEST

START_TEST(a_refused_request_is_an_error_without_result)
{
    struct trace_record *record = record_create();
    record->error = "invalid";
    Otlp__ExportTraceServiceRequest *m = encode(record, 1);
    const Otlp__Span *span = m->resource_spans[0]->scope_spans[0]->spans[0];
    ck_assert_uint_eq(span->parent_span_id.len, 0);
    ck_assert_uint_eq(span->flags, 0x101);
    ck_assert_uint_eq(span->status->code, 2);
    ck_assert_str_eq(span->status->message, "");
    ck_text(span, "error.type", "invalid");
    ck_assert_ptr_null(find(span->attributes, span->n_attributes, "gen_ai.response.finish_reasons"));
    ck_assert_ptr_null(find(span->attributes, span->n_attributes, "forepack.request"));
    otlp__export_trace_service_request__free_unpacked(m, NULL);
    trace_record_free(record);
}
END_TEST

START_TEST(the_message_names_its_source)
{
    struct trace_record *record = record_create();
    Otlp__ExportTraceServiceRequest *m = encode(record, 1);
    const Otlp__ResourceSpans *spans = m->resource_spans[0];
    const Otlp__Resource *resource = spans->resource;
    ck_assert_str_eq(find(resource->attributes, resource->n_attributes, "service.name")->string_value, "service");
    ck_assert_str_eq(find(resource->attributes, resource->n_attributes, "service.version")->string_value, "1.2");
    ck_assert_str_eq(find(resource->attributes, resource->n_attributes, "service.instance.id")->string_value, "0123");
    ck_assert_str_eq(find(resource->attributes, resource->n_attributes, "host.name")->string_value, "host");
    ck_assert_str_eq(spans->scope_spans[0]->scope->name, "forepack.router");
    ck_assert_str_eq(spans->scope_spans[0]->scope->version, "1.2");
    otlp__export_trace_service_request__free_unpacked(m, NULL);
    trace_record_free(record);
}
END_TEST

START_TEST(a_message_is_bounded)
{
    struct trace_record *records[3];
    for (int i = 2; i >= 0; i--) {
        records[i] = whole_record();
        if (i < 2) records[i]->next = records[i + 1];
    }
    struct otlp_buffer out = {0};
    int n_spans;
    ck_assert_ptr_eq(otlp_encode(&out, &source, records[0], 1000, &n_spans), records[1]); // one has more than that
    ck_assert_int_eq(n_spans, 10);
    out.n = 0;
    ck_assert_ptr_null(otlp_encode(&out, &source, records[1], 1 << 20, &n_spans));
    ck_assert_int_eq(n_spans, 20);
    free(out.data);
    for (int i = 0; i < 3; i++)
        trace_record_free(records[i]);
}
END_TEST

START_TEST(the_phases_of_a_record_are_bounded)
{
    struct trace_record *record = record_create();
    for (int i = 0; i < 1000; i++)
        trace_phase_end(record, i % 2 ? TRACE_PREFILL : TRACE_PACK_WAIT, NULL, 100 + i);
    ck_assert_int_eq(record->n_parts, TRACE_PARTS_MAX);
    ck_assert_int_eq(record->parts[TRACE_PARTS_MAX - 1].end_us, 1099);
    trace_record_free(record);
    record = record_create();
    record->sampled = false;
    trace_phase_end(record, TRACE_ADMIT, NULL, 110);
    ck_assert_int_eq(record->n_parts, 0);
    trace_record_free(record);
}
END_TEST

SUITE("otlp")
{
    TEST(the_span_of_a_request_has_its_attributes);
    TEST(phases_are_spans_without_gaps);
    TEST(a_refused_request_is_an_error_without_result);
    TEST(the_message_names_its_source);
    TEST(a_message_is_bounded);
    TEST(the_phases_of_a_record_are_bounded);
}
