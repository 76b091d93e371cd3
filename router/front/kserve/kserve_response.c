// SPDX-License-Identifier: Apache-2.0
#include "router/front/kserve/kserve_response.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "router/front/grpc/wire_response.h"
#include "router/front/http/json_writer.h"
#include "router/front/kserve/kserve_tensors.h"
#include "router/front/request/reply.h"

typedef Inference__ModelInferResponse response;
typedef Inference__ModelInferResponse__InferOutputTensor output_tensor;
typedef Inference__ModelInferResponse__ParametersEntry parameter;

enum { PARAMETERS_MAX = 24 };

// A response and the objects that it points to.
struct message {
    response head;
    output_tensor outputs[KSERVE_OUTPUT_COUNT], *output_list[KSERVE_OUTPUT_COUNT];
    int64_t shapes[KSERVE_OUTPUT_COUNT];
    ProtobufCBinaryData raw[KSERVE_OUTPUT_COUNT];
    struct bytes contents[KSERVE_OUTPUT_COUNT];
    parameter parameters[PARAMETERS_MAX], *parameter_list[PARAMETERS_MAX];
    Inference__InferParameter values[PARAMETERS_MAX];
};

// --- parameters

static Inference__InferParameter *add_parameter(struct message *m, const char *name)
{
    size_t i = m->head.n_parameters++;
    INVARIANT(i < PARAMETERS_MAX, "parameter %zu", i);
    inference__model_infer_response__parameters_entry__init(&m->parameters[i]);
    inference__infer_parameter__init(&m->values[i]);
    m->parameters[i].key = (char *)name;
    m->parameters[i].value = &m->values[i];
    m->parameter_list[i] = &m->parameters[i];
    return &m->values[i];
}

static void add_bool(struct message *m, const char *name, bool on)
{
    Inference__InferParameter *value = add_parameter(m, name);
    value->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
    value->bool_param = on;
}

static void add_integer(struct message *m, const char *name, int64_t number)
{
    Inference__InferParameter *value = add_parameter(m, name);
    value->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
    value->int64_param = number;
}

static void add_text(struct message *m, const char *name, const char *text)
{
    Inference__InferParameter *value = add_parameter(m, name);
    value->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    value->string_param = (char *)text;
}

static void add_real(struct message *m, const char *name, double real)
{
    Inference__InferParameter *value = add_parameter(m, name);
    value->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM;
    value->double_param = real;
}

static void add_milliseconds(struct message *m, const char *name, double us)
{
    add_real(m, name, us / 1e3);
}

static void add_usage(struct message *m, const struct request *r, const char *prefill, const char *limit)
{
    add_integer(m, "prompt_tokens", r->usage.prompt_tokens);
    add_integer(m, "completion_tokens", r->usage.completion_tokens);
    add_integer(m, "scored_tokens", r->usage.scored_tokens);
    add_integer(m, "score_cached_tokens", r->usage.score_cached_tokens);
    add_integer(m, "kept_tokens", r->usage.kept_tokens);
    add_integer(m, "cached_tokens", r->usage.cached_tokens);
    add_integer(m, "frozen_tokens", r->usage.frozen_tokens);
    add_integer(m, "recalled_tokens", r->usage.recalled_tokens);
    add_integer(m, "replays", r->usage.replays);
    add_integer(m, "draft_tokens", r->usage.draft_tokens);
    add_integer(m, "draft_accepted_tokens", r->usage.draft_accepted_tokens);
    add_text(m, "prefill", prefill);
    add_real(m, "keep_rate", r->keep_rate);
    add_text(m, "prefill_reason", request_rate_reason(r));
    if (*limit) add_text(m, "prefill_limit", limit);
    add_milliseconds(m, "ttft_ms", (double)r->timing.ttft_us);
    add_milliseconds(m, "total_ms", (double)r->timing.total_us);
    if (r->predicted.whole_us > 0) {
        add_milliseconds(m, "predicted_whole_ms", r->predicted.whole_us);
        add_milliseconds(m, "predicted_pruned_ms", r->predicted.pruned_us);
    }
}

// --- outputs

static void add_output(struct message *m, enum kserve_output kind, size_t n_elements)
{
    size_t i = m->head.n_outputs++;
    output_tensor *t = &m->outputs[i];
    inference__model_infer_response__infer_output_tensor__init(t);
    t->name = (char *)kserve_outputs[kind].name;
    t->datatype = (char *)kserve_outputs[kind].datatype;
    m->shapes[i] = (int64_t)n_elements;
    t->shape = &m->shapes[i];
    t->n_shape = 1;
    m->output_list[i] = t;
    m->raw[i] = (ProtobufCBinaryData){m->contents[kind].n, (uint8_t *)m->contents[kind].data};
}

static void add_text_output(struct message *m, enum kserve_output kind, const char *text, size_t n)
{
    uint8_t length[4];
    kserve_length_write((uint32_t)n, length);
    bytes_add(&m->contents[kind], (const char *)length, sizeof length);
    bytes_add(&m->contents[kind], text, n);
    add_output(m, kind, 1);
}

static void add_value_output(struct message *m, enum kserve_output kind, const void *value)
{
    bytes_add(&m->contents[kind], value, 4); // UINT32 or FP32, little-endian like all machines that run this
    add_output(m, kind, 1);
}

static void add_log_probabilities(struct message *m, const struct kserve_answer *a)
{
    if (a->outputs & 1u << KSERVE_CUMULATIVE_LOGPROB) {
        float sum = (float)a->cumulative_logprob;
        add_value_output(m, KSERVE_CUMULATIVE_LOGPROB, &sum);
    }
    if (a->outputs & 1u << KSERVE_LOGPROBS) {
        struct bytes list = {0};
        JSON_ADD(&list, "[");
        bytes_add(&list, a->logprobs.data, a->logprobs.n);
        JSON_ADD(&list, "]");
        add_text_output(m, KSERVE_LOGPROBS, list.data, list.n);
        bytes_free(&list);
    }
}

// Adds the outputs. `reason` is "None" while the answer goes on: Python clients of Triton's vLLM backend expect that.
static void add_outputs(struct message *m, const struct kserve_answer *a, const struct request *r, const char *reason)
{
    uint32_t n_prompt = (uint32_t)r->spec.n_tokens, n_tokens = (uint32_t)a->n_tokens;
    if (a->outputs & 1u << KSERVE_TEXT) add_text_output(m, KSERVE_TEXT, a->text.data, a->text.n);
    if (a->outputs & 1u << KSERVE_IDS) {
        bytes_add(&m->contents[KSERVE_IDS], a->ids.data, a->ids.n);
        add_output(m, KSERVE_IDS, a->ids.n / sizeof(int32_t));
    }
    if (a->outputs & 1u << KSERVE_FINISH_REASON) add_text_output(m, KSERVE_FINISH_REASON, reason, strlen(reason));
    if (a->outputs & 1u << KSERVE_INPUT_TOKENS) add_value_output(m, KSERVE_INPUT_TOKENS, &n_prompt);
    if (a->outputs & 1u << KSERVE_OUTPUT_TOKENS) add_value_output(m, KSERVE_OUTPUT_TOKENS, &n_tokens);
    add_log_probabilities(m, a);
}

// --- messages

static void message_init(struct message *m, const char *model, const char *id)
{
    *m = (struct message){0};
    inference__model_infer_response__init(&m->head);
    m->head.model_name = (char *)model;
    m->head.model_version = KSERVE_VERSION;
    m->head.id = (char *)id;
    m->head.outputs = m->output_list;
    m->head.raw_output_contents = m->raw;
    m->head.parameters = m->parameter_list;
}

static void message_send(struct rpc_call *call, struct message *m, bool on_stream)
{
    m->head.n_raw_output_contents = m->head.n_outputs;
    if (on_stream) {
        Inference__ModelStreamInferResponse wrapped = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
        wrapped.infer_response = &m->head;
        reply_stream(call, &wrapped.base);
    } else {
        reply_unary(call, &m->head.base);
    }
    for (int k = 0; k < KSERVE_OUTPUT_COUNT; k++)
        bytes_free(&m->contents[k]);
}

static void final_send(struct rpc_call *call, const struct kserve_answer *a)
{
    struct message m;
    message_init(&m, a->model, a->id);
    add_bool(&m, "triton_final_response", true);
    message_send(call, &m, true);
}

void kserve_error_send(struct rpc_call *call, const char *id, const char *message)
{
    struct message m;
    bool valid = utf8_valid(id, strlen(id), NULL) && *id;
    // The error message contains the id, because Triton's clients show only the message.
    char *sentence = valid ? mem_format("[request id: %s] %s", id, message) : mem_string(message);
    message_init(&m, "", valid ? id : "");
    add_bool(&m, "triton_final_response", true);
    Inference__ModelStreamInferResponse wrapped = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
    wrapped.error_message = sentence;
    wrapped.infer_response = &m.head;
    reply_stream(call, &wrapped.base);
    free(sentence);
}

// --- answers

struct kserve_answer *kserve_answer_create(struct front *front, const Inference__ModelInferRequest *m,
                                           const struct kserve_request *q, bool on_stream)
{
    struct kserve_answer *a = mem_alloc(sizeof *a);
    a->id = mem_string(m->id);
    a->model = mem_string(*m->model_name ? m->model_name : front->model_names[0]);
    a->on_stream = on_stream;
    a->pieces = q->stream;
    a->empty_final = q->empty_final;
    a->outputs = q->outputs;
    a->tokenizer = front->tokenizer;
    a->whole = &front->whole;
    const ProtobufCBinaryData *prompt = &q->fields.message.text;
    if (q->echo && a->outputs & 1u << KSERVE_TEXT) bytes_add(&a->text, (const char *)prompt->data, prompt->len);
    return a;
}

bool kserve_answer_begin(struct kserve_answer *a)
{
    return whole_answer_grow(a->whole, &a->whole_bytes, a->text.n);
}

void kserve_answer_free(struct kserve_answer *a)
{
    if (a->whole_bytes) whole_answer_free(a->whole, &a->whole_bytes); // 0 before submission, when any thread may call
    free(a->id);
    free(a->model);
    bytes_free(&a->text);
    bytes_free(&a->ids);
    bytes_free(&a->logprobs);
    free(a);
}

static void add_token(const struct kserve_answer *a, int32_t token, float logprob, int rank, struct bytes *out)
{
    const char *text;
    size_t n;
    char number[24];
    json_add_comma(out);
    snprintf(number, sizeof number, "\"%d\":", (int)token);
    json_add(out, number);
    JSON_ADD(out, "{\"logprob\":");
    json_add_real(out, (double)logprob);
    JSON_ADD(out, ",\"rank\":");
    if (rank)
        json_add_integer(out, rank);
    else
        JSON_ADD(out, "null");
    JSON_ADD(out, ",\"decoded_token\":");
    tokenizer_piece(a->tokenizer, token, &text, &n);
    json_add_text(out, text, n);
    JSON_ADD(out, "}");
}

// Adds the object of one token in vLLM's format: log-probability and rank, with token ids as keys. The rank is null if
// the token is not among the likeliest tokens.
static void add_logprobs(struct kserve_answer *a, const struct token_logprob *l)
{
    int rank = 0;
    for (int t = 0; t < l->n_top && !rank; t++)
        if (l->top_token[t] == l->token) rank = t + 1;
    json_add_comma(&a->logprobs);
    JSON_ADD(&a->logprobs, "{");
    add_token(a, l->token, l->logprob, rank, &a->logprobs);
    for (int t = 0; t < l->n_top; t++)
        if (l->top_token[t] != l->token) add_token(a, l->top_token[t], l->top_logprob[t], t + 1, &a->logprobs);
    JSON_ADD(&a->logprobs, "}");
}

static void answer_add(struct kserve_answer *a, const struct answer_chunk *chunk)
{
    a->n_tokens += chunk->n;
    if (a->outputs & 1u << KSERVE_TEXT) bytes_add(&a->text, chunk->text, chunk->text_bytes);
    if (a->outputs & 1u << KSERVE_IDS)
        bytes_add(&a->ids, (const char *)chunk->tokens, (size_t)chunk->n * sizeof *chunk->tokens);
    for (int i = 0; i < chunk->n && chunk->logprobs; i++) {
        a->cumulative_logprob += (double)chunk->logprobs[i].logprob;
        if (a->outputs & 1u << KSERVE_LOGPROBS) add_logprobs(a, &chunk->logprobs[i]);
    }
}

static void answer_sent(struct kserve_answer *a)
{
    a->text.n = a->ids.n = a->logprobs.n = 0;
    a->n_tokens = 0;
}

static size_t answer_bytes(const struct kserve_answer *a)
{
    return a->text.n + a->ids.n + a->logprobs.n;
}

bool kserve_chunk(struct rpc_call *call, struct kserve_answer *a, const struct answer_chunk *chunk,
                  const struct request *r)
{
    size_t before = answer_bytes(a);
    answer_add(a, chunk);
    if (!a->pieces) return whole_answer_grow(a->whole, &a->whole_bytes, answer_bytes(a) - before);
    bool by_token = a->outputs & ~(1u << KSERVE_TEXT); // without other outputs, a piece without text would be empty
    if (!a->text.n && !(by_token && a->n_tokens)) return true;
    struct message m;
    message_init(&m, a->model, a->id);
    add_outputs(&m, a, r, "None");
    add_bool(&m, "triton_final_response", false);
    message_send(call, &m, true);
    answer_sent(a);
    return true;
}

void kserve_end(struct rpc_call *call, struct kserve_answer *a, const struct request *r,
                const struct answer_chunk *rest, enum finish_reason reason)
{
    struct message m;
    char prefill[WIRE_PREFILL_ROOM], limit[REQUEST_LIMIT_ROOM];
    answer_add(a, rest);
    wire_prefill_format(r, prefill);
    request_limit_format(r, limit);
    message_init(&m, a->model, a->id);
    add_outputs(&m, a, r, finish_reason_name(reason));
    if (a->on_stream) add_bool(&m, "triton_final_response", !a->empty_final);
    add_usage(&m, r, prefill, limit);
    message_send(call, &m, a->on_stream);
    if (a->on_stream && a->empty_final) final_send(call, a);
}
