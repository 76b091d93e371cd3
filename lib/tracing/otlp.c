// SPDX-License-Identifier: Apache-2.0
#include "lib/tracing/otlp.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

// --- protobuf

enum wire_type { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };

static uint8_t *grow(struct otlp_buffer *out, size_t more)
{
    if (out->capacity - out->n < more) {
        size_t capacity = 2 * out->capacity > out->n + more ? 2 * out->capacity : out->n + more;
        out->data = mem_resize(out->data, capacity, 1);
        out->capacity = capacity;
    }
    uint8_t *at = out->data + out->n;
    out->n += more;
    return at;
}

static void add_bytes(struct otlp_buffer *out, const void *bytes, size_t n)
{
    memcpy(grow(out, n), bytes, n);
}

static void add_varint(struct otlp_buffer *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (uint8_t)(value | 0x80);
    bytes[n++] = (uint8_t)value;
    add_bytes(out, bytes, n);
}

static void add_tag(struct otlp_buffer *out, int field, enum wire_type type)
{
    add_varint(out, (uint64_t)(field << 3 | (int)type));
}

static void add_fixed(struct otlp_buffer *out, uint64_t value, int n_bytes)
{
    uint8_t *at = grow(out, (size_t)n_bytes);
    for (int i = 0; i < n_bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void field_uint(struct otlp_buffer *out, int field, uint64_t value)
{
    add_tag(out, field, WIRE_VARINT);
    add_varint(out, value);
}

static void field_fixed64(struct otlp_buffer *out, int field, uint64_t value)
{
    add_tag(out, field, WIRE_FIXED64);
    add_fixed(out, value, 8);
}

static void field_bytes(struct otlp_buffer *out, int field, const void *bytes, size_t n)
{
    add_tag(out, field, WIRE_BYTES);
    add_varint(out, n);
    add_bytes(out, bytes, n);
}

static void field_text(struct otlp_buffer *out, int field, const char *text)
{
    field_bytes(out, field, text, strlen(text));
}

// Begins a message within a message. Its length is written when it ends, as a varint of a fixed number of bytes, which
// parsers accept.
enum { LENGTH_BYTES = 4 };

static size_t message_begin(struct otlp_buffer *out, int field)
{
    add_tag(out, field, WIRE_BYTES);
    grow(out, LENGTH_BYTES);
    return out->n;
}

static void message_end(struct otlp_buffer *out, size_t begin)
{
    size_t length = out->n - begin;
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        out->data[begin - LENGTH_BYTES + i] = (uint8_t)((length >> 7 * i & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}

// --- attributes: KeyValue {key = 1, value = 2: AnyValue}

enum { KEY = 1, VALUE = 2 };
enum { VALUE_TEXT = 1, VALUE_INT = 3, VALUE_REAL = 4, VALUE_ARRAY = 5, ARRAY_VALUES = 1 };

struct attributes { // attributes of one message
    struct otlp_buffer *out;
    int field; // field number of its list of attributes
};

static size_t varint_size(uint64_t value)
{
    size_t n = 1;
    while (value >>= 7)
        n++;
    return n;
}

static size_t text_field_size(size_t length)
{
    return 1 + varint_size(length) + length;
}

// Writes an attribute up to the field with the value. That field has `value_bytes`.
static void attribute_begin(const struct attributes *to, const char *key, size_t value_bytes)
{
    size_t key_bytes = strlen(key);
    add_tag(to->out, to->field, WIRE_BYTES);
    add_varint(to->out, text_field_size(key_bytes) + text_field_size(value_bytes));
    field_bytes(to->out, KEY, key, key_bytes);
    add_tag(to->out, VALUE, WIRE_BYTES);
    add_varint(to->out, value_bytes);
}

static void add_text(const struct attributes *to, const char *key, const char *text)
{
    if (!text) return;
    size_t length = strlen(text);
    attribute_begin(to, key, text_field_size(length));
    field_bytes(to->out, VALUE_TEXT, text, length);
}

static void add_int(const struct attributes *to, const char *key, int64_t value)
{
    attribute_begin(to, key, 1 + varint_size((uint64_t)value));
    field_uint(to->out, VALUE_INT, (uint64_t)value);
}

static void add_real(const struct attributes *to, const char *key, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    attribute_begin(to, key, 1 + sizeof bits);
    field_fixed64(to->out, VALUE_REAL, bits);
}

static void add_list_of_one(const struct attributes *to, const char *key, const char *text)
{
    size_t length = strlen(text), any = text_field_size(length), array = text_field_size(any);
    attribute_begin(to, key, text_field_size(array));
    add_tag(to->out, VALUE_ARRAY, WIRE_BYTES);
    add_varint(to->out, array);
    add_tag(to->out, ARRAY_VALUES, WIRE_BYTES);
    add_varint(to->out, any);
    field_bytes(to->out, VALUE_TEXT, text, length);
}

// --- spans

enum {
    SPAN_TRACE_ID = 1,
    SPAN_ID = 2,
    SPAN_STATE = 3,
    SPAN_PARENT_ID = 4,
    SPAN_NAME = 5,
    SPAN_KIND = 6,
    SPAN_START = 7, // in nanoseconds
    SPAN_END = 8,
    SPAN_ATTRIBUTES = 9,
    SPAN_STATUS = 15,
    SPAN_FLAGS = 16
};
enum { KIND_INTERNAL = 1, KIND_SERVER = 2 };
enum { STATUS_CODE = 3, STATUS_CODE_ERROR = 2 };
enum { FLAG_SAMPLED = 1, FLAG_REMOTE_KNOWN = 1 << 8, FLAG_REMOTE = 1 << 9 }; // REMOTE: the parent is in another process

static void add_span_id(struct otlp_buffer *out, int field, uint64_t id)
{
    add_tag(out, field, WIRE_BYTES);
    add_varint(out, SPAN_ID_BYTES);
    add_fixed(out, id, SPAN_ID_BYTES);
}

static void add_times(struct otlp_buffer *out, const struct otlp_source *source, int64_t start_us, int64_t end_us)
{
    field_fixed64(out, SPAN_START, (uint64_t)(start_us + source->wall_offset_us) * 1000);
    field_fixed64(out, SPAN_END, (uint64_t)(end_us + source->wall_offset_us) * 1000);
}

static void add_flags(struct otlp_buffer *out, bool remote)
{
    add_tag(out, SPAN_FLAGS, WIRE_FIXED32);
    add_fixed(out, FLAG_SAMPLED | FLAG_REMOTE_KNOWN | (remote ? FLAG_REMOTE : 0), 4);
}

static bool has_parent(const struct trace_record *record)
{
    static const uint8_t none[SPAN_ID_BYTES];
    return memcmp(record->parent_id, none, sizeof none) != 0;
}

// Adds the name: "chat NAME", where NAME is the model.
static void add_name(struct otlp_buffer *out, const struct trace_record *record)
{
    const char *operation = record->operation ? record->operation : "request";
    const char *model = record->request_model;
    size_t operation_bytes = strlen(operation), model_bytes = model ? strlen(model) : 0;
    add_tag(out, SPAN_NAME, WIRE_BYTES);
    add_varint(out, operation_bytes + (model ? 1 + model_bytes : 0));
    add_bytes(out, operation, operation_bytes);
    if (!model) return;
    add_bytes(out, " ", 1);
    add_bytes(out, model, model_bytes);
}

static void add_request(const struct attributes *to, const struct trace_record *record)
{
    const struct trace_request *request = &record->request;
    char number[17];
    snprintf(number, sizeof number, "%016llx", (unsigned long long)record->number);
    add_text(to, "gen_ai.response.id", record->id);
    add_text(to, "forepack.request", number);
    add_text(to, "forepack.tenant", record->tenant);
    add_int(to, "forepack.priority", request->priority);
    if (!request->max_tokens) return; // a request to score a prompt has no such fields
    add_int(to, "gen_ai.request.max_tokens", request->max_tokens);
    add_real(to, "gen_ai.request.temperature", request->temperature);
    add_real(to, "gen_ai.request.top_p", request->top_p);
    if (request->top_k > 0) add_int(to, "gen_ai.request.top_k", request->top_k);
    if (request->presence_penalty != 0) add_real(to, "gen_ai.request.presence_penalty", request->presence_penalty);
    if (request->frequency_penalty != 0) add_real(to, "gen_ai.request.frequency_penalty", request->frequency_penalty);
}

static void add_result(const struct attributes *to, const struct trace_record *record)
{
    const struct trace_usage *usage = &record->usage;
    add_text(to, "gen_ai.response.model", record->response_model);
    add_list_of_one(to, "gen_ai.response.finish_reasons", record->finish);
    add_int(to, "gen_ai.usage.input_tokens", usage->input_tokens);
    add_int(to, "gen_ai.usage.output_tokens", usage->output_tokens);
    add_int(to, "gen_ai.usage.cache_read.input_tokens", usage->cached_tokens);
    if (record->first_token_us)
        add_real(to, "gen_ai.response.time_to_first_chunk", (double)record->first_token_us / 1e6);
    add_text(to, "forepack.prefill", record->prefill);
    add_text(to, "forepack.prefill.skip_reason", record->skip);
    if (*record->prefill_limit) add_text(to, "forepack.prefill.limit", record->prefill_limit);
    add_int(to, "forepack.scored_tokens", usage->scored_tokens);
    add_int(to, "forepack.score_cached_tokens", usage->score_cached_tokens);
    add_int(to, "forepack.kept_tokens", usage->kept_tokens);
    add_int(to, "forepack.frozen_tokens", usage->frozen_tokens);
    add_int(to, "forepack.recalled_tokens", usage->recalled_tokens);
    add_int(to, "forepack.replays", usage->replays);
}

static void add_server_attributes(struct otlp_buffer *out, const struct otlp_source *source,
                                  const struct trace_record *record)
{
    const struct attributes to = {out, SPAN_ATTRIBUTES};
    add_text(&to, "gen_ai.operation.name", record->operation);
    add_text(&to, "gen_ai.provider.name", "forepack");
    add_text(&to, "gen_ai.request.model", record->request_model);
    add_text(&to, "server.address", source->server_address);
    if (record->server_port) add_int(&to, "server.port", record->server_port);
    add_text(&to, "error.type", record->error);
    if (record->number) add_request(&to, record);
    if (record->finish) add_result(&to, record);
}

static void add_server_span(struct otlp_buffer *out, const struct otlp_source *source,
                            const struct trace_record *record)
{
    size_t begin = message_begin(out, 2); // ScopeSpans.spans
    field_bytes(out, SPAN_TRACE_ID, record->trace_id, TRACE_ID_BYTES);
    add_span_id(out, SPAN_ID, record->span_id);
    if (record->state) field_text(out, SPAN_STATE, record->state);
    if (has_parent(record)) field_bytes(out, SPAN_PARENT_ID, record->parent_id, SPAN_ID_BYTES);
    add_name(out, record);
    field_uint(out, SPAN_KIND, KIND_SERVER);
    add_times(out, source, record->start_us, record->end_us);
    add_server_attributes(out, source, record);
    if (record->error) {
        size_t status = message_begin(out, SPAN_STATUS);
        field_uint(out, STATUS_CODE, STATUS_CODE_ERROR);
        message_end(out, status);
    }
    add_flags(out, has_parent(record));
    message_end(out, begin);
}

// Returns the id of a phase. Ids of phases differ from each other and from their server span's id. They differ from the
// ids of other requests with the same likelihood as random numbers. (A multiplication by an odd number permutes all
// 64-bit numbers.)
static uint64_t part_id(const struct trace_record *record, int i)
{
    uint64_t id = (record->span_id + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
    id ^= id >> 32;
    return id ? id : 1;
}

static void add_part_span(struct otlp_buffer *out, const struct otlp_source *source, const struct trace_record *record,
                          int i)
{
    const struct trace_part *part = &record->parts[i];
    const struct attributes to = {out, SPAN_ATTRIBUTES};
    int64_t start_us = i ? part[-1].end_us : record->start_us;
    size_t begin = message_begin(out, 2); // ScopeSpans.spans
    field_bytes(out, SPAN_TRACE_ID, record->trace_id, TRACE_ID_BYTES);
    add_span_id(out, SPAN_ID, part_id(record, i));
    add_span_id(out, SPAN_PARENT_ID, record->span_id);
    field_text(out, SPAN_NAME, trace_phase_name(part->phase));
    field_uint(out, SPAN_KIND, KIND_INTERNAL);
    add_times(out, source, start_us, part->end_us);
    add_text(&to, "forepack.node", part->node);
    add_flags(out, false);
    message_end(out, begin);
}

int otlp_span_count(const struct trace_record *record)
{
    return 1 + record->n_parts;
}

static void add_record(struct otlp_buffer *out, const struct otlp_source *source, const struct trace_record *record)
{
    add_server_span(out, source, record);
    for (int i = 0; i < record->n_parts; i++)
        add_part_span(out, source, record, i);
}

// --- the request

static void add_resource(struct otlp_buffer *out, const struct otlp_source *source)
{
    const struct attributes to = {out, 1};
    size_t resource = message_begin(out, 1); // ResourceSpans.resource
    add_text(&to, "service.name", source->service_name);
    add_text(&to, "service.version", source->version);
    add_text(&to, "service.instance.id", source->instance_id);
    add_text(&to, "host.name", source->host_name);
    message_end(out, resource);
}

struct trace_record *otlp_encode(struct otlp_buffer *out, const struct otlp_source *source,
                                 struct trace_record *records, size_t max_bytes, int *n_spans_p)
{
    *n_spans_p = 0;
    size_t resource_spans = message_begin(out, 1); // ExportTraceServiceRequest.resource_spans
    add_resource(out, source);
    size_t scope_spans = message_begin(out, 2); // ResourceSpans.scope_spans
    size_t scope = message_begin(out, 1);       // ScopeSpans.scope
    field_text(out, 1, "forepack.router");
    field_text(out, 2, source->version);
    message_end(out, scope);
    while (records && out->n <= max_bytes) {
        add_record(out, source, records);
        *n_spans_p += otlp_span_count(records);
        records = records->next;
    }
    message_end(out, scope_spans);
    message_end(out, resource_spans);
    return records;
}
