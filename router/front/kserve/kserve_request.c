// SPDX-License-Identifier: Apache-2.0
#include "router/front/kserve/kserve_request.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "router/front/http/json_body.h"
#include "router/front/kserve/kserve_tensors.h"
#include "router/front/request/intake.h"

enum { PARAMETERS_MAX = 256, PARAMETER_ELEMENTS_MAX = 1024 };

// Limit in bytes of the JSON in all string parameters together. A parsed value takes several times its bytes in memory.
enum { PARAMETER_JSON_BYTES_MAX = 256 << 10 };

#define INFO(name, type, dim)                                                                                          \
    {                                                                                                                  \
        name, #type, INFERENCE__DATA_TYPE__TYPE_##type, dim                                                            \
    }
#define INFERENCE__DATA_TYPE__TYPE_BYTES INFERENCE__DATA_TYPE__TYPE_STRING
const struct kserve_tensor_info kserve_inputs[] = {
    INFO("text_input", BYTES, 1),
    INFO("input_ids", INT32, -1),
    INFO("sampling_parameters", BYTES, 1),
    INFO("stream", BOOL, 1),
    INFO("exclude_input_in_output", BOOL, 1),
    INFO("return_finish_reason", BOOL, 1),
    INFO("return_num_input_tokens", BOOL, 1),
    INFO("return_num_output_tokens", BOOL, 1),
    INFO("return_cumulative_logprob", BOOL, 1),
    INFO("return_logprobs", BOOL, 1),
    {0},
};
const struct kserve_tensor_info kserve_outputs[KSERVE_OUTPUT_COUNT] = {
    [KSERVE_TEXT] = INFO("text_output", BYTES, 1),
    [KSERVE_IDS] = INFO("output_ids", INT32, -1),
    [KSERVE_FINISH_REASON] = INFO("finish_reason", BYTES, 1),
    [KSERVE_INPUT_TOKENS] = INFO("num_input_tokens", UINT32, 1),
    [KSERVE_OUTPUT_TOKENS] = INFO("num_output_tokens", UINT32, 1),
    [KSERVE_CUMULATIVE_LOGPROB] = INFO("cumulative_logprob", FP32, 1),
    [KSERVE_LOGPROBS] = INFO("logprobs", BYTES, 1),
};

// Parameters that are read here. Other parameters are read with the fields of the HTTP API.
struct values {
    bool stream, exclude_input_in_output, triton_enable_empty_final_response;
    bool returns[KSERVE_OUTPUT_COUNT];
    const json_t *logprobs;
};
#define FLAG(name_, member)                                                                                            \
    {                                                                                                                  \
        .name = name_, .type = JSON_FIELD_BOOL, .offset = offsetof(struct values, member)                              \
    }
static const struct json_field flags[] = {
    FLAG("stream", stream),
    FLAG("exclude_input_in_output", exclude_input_in_output),
    FLAG("triton_enable_empty_final_response", triton_enable_empty_final_response),
    FLAG("return_token_ids", returns[KSERVE_IDS]),
    FLAG("return_finish_reason", returns[KSERVE_FINISH_REASON]),
    FLAG("return_num_input_tokens", returns[KSERVE_INPUT_TOKENS]),
    FLAG("return_num_output_tokens", returns[KSERVE_OUTPUT_TOKENS]),
    FLAG("return_cumulative_logprob", returns[KSERVE_CUMULATIVE_LOGPROB]),
    FLAG("return_logprobs", returns[KSERVE_LOGPROBS]),
    {.name = "logprobs", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, logprobs)},
    {0},
};

static const struct json_unsupported unsupported[] = {
    {"prompt_logprobs", NULL, "ask for them over HTTP"},
    {"echo", "false", "give exclude_input_in_output"},
    {"lora_name", NULL, "ask for the model's own name"},
    {"n", "1", "send a request for each answer"},
    {"beam_width", "1", NULL},
    {"num_return_sequences", "1", "send a request for each answer"},
    {"length_penalty", "1.0", NULL},
    {0},
};

// --- the JSON object of parameters

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

static enum status set_parameter(json_t *to, const char *name, json_t *value)
{
    if (value && json_object_set_new(to, name, value) == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "parameter '%s': must be text in UTF-8, a finite number or a switch", name);
}

static json_t *parameter_json(const Inference__InferParameter *value)
{
    switch (value->parameter_choice_case) {
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM: return json_boolean(value->bool_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM: return json_integer(value->int64_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM: return json_string(value->string_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM: return json_real(value->double_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM:
        return json_integer(value->uint64_param > INT64_MAX ? INT64_MAX : (int64_t)value->uint64_param);
    default: return NULL;
    }
}

static bool is_zero(const json_t *value)
{
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && !json_string_length(value));
}

// Turns Triton's `timeout`, the microseconds that a request may wait in the queue, into ttft_deadline_ms.
static enum status set_timeout(json_t *to, const json_t *value)
{
    json_int_t us = json_integer_value(value);
    if (!json_is_integer(value) || us < 0) return json_refuse_type("timeout", "a number of microseconds, 0 or more");
    json_int_t ms = us / 1000 + (us % 1000 > 0);
    return set_parameter(to, "ttft_deadline_ms", json_integer(ms < UINT32_MAX ? ms : UINT32_MAX));
}

// Adds a parameter of the request. Parameters with a special meaning in Triton are translated, ignored or refused
// instead. Takes ownership of `value`.
static enum status set_request_parameter(json_t *to, const char *name, json_t *value)
{
    static const char *const sequences[] = {"sequence_id", "sequence_start", "sequence_end", NULL};
    static const char *const of_http[] = {"headers", "binary_data_output", NULL};
    bool triton = strncmp(name, "triton_", 7) == 0 && strcmp(name, "triton_enable_empty_final_response") != 0;
    bool priority = strcmp(name, "priority") == 0, sequence = is_one_of(name, sequences);
    enum status status = STATUS_OK;
    if (!triton && !priority && !sequence && !is_one_of(name, of_http) && strcmp(name, "timeout") != 0)
        return set_parameter(to, name, value);
    if (triton)
        status = status_fail(STATUS_INVALID, "parameter '%s': names with triton_ are reserved: leave it out", name);
    else if (priority && !is_zero(value))
        status = status_fail(STATUS_UNSUPPORTED, "parameter 'priority': Triton's levels are not supported: give a "
                                                 "priority in sampling_parameters, where larger ones go first");
    else if (sequence && !is_zero(value))
        status = status_fail(STATUS_UNSUPPORTED, "parameter '%s': the model has no sequences: leave it out", name);
    else if (strcmp(name, "timeout") == 0)
        status = set_timeout(to, value);
    json_decref(value);
    return status;
}

static enum status add_request_parameters(const Inference__ModelInferRequest *m, json_t *to)
{
    if (m->n_parameters > PARAMETERS_MAX)
        return status_fail(STATUS_INVALID, "parameters: %zu given, at most %d are allowed", m->n_parameters,
                           PARAMETERS_MAX);
    for (size_t i = 0; i < m->n_parameters; i++) {
        const Inference__ModelInferRequest__ParametersEntry *entry = m->parameters[i];
        TRY(intake_check_name("the name of a parameter", entry->key));
        json_t *value = entry->value ? parameter_json(entry->value) : NULL;
        if (!value)
            return status_fail(STATUS_INVALID, "parameter '%s': must be text in UTF-8, a finite number or a switch",
                               entry->key);
        TRY(set_request_parameter(to, entry->key, value));
    }
    return STATUS_OK;
}

static enum status check_single(const struct kserve_tensor *t)
{
    if (t->n == 1) return STATUS_OK;
    return status_fail(STATUS_INVALID, "input '%s': has %zu elements: must have 1, there is no batching of requests",
                       t->name, t->n);
}

static enum status check_kind(const struct kserve_tensor *t, enum kserve_kind kind, const char *expected)
{
    if (t->kind == kind) return STATUS_OK;
    return status_fail(STATUS_INVALID, "input '%s': datatype %s: must be %s", t->name, t->datatype, expected);
}

static enum status read_single_text(const struct kserve_tensor *t, ProtobufCBinaryData *text_p)
{
    struct kserve_place place = {0};
    TRY(check_kind(t, KSERVE_BYTES, "BYTES"));
    TRY(check_single(t));
    kserve_tensor_next(t, &place, text_p);
    return STATUS_OK;
}

static enum status add_sampling_parameters(const struct kserve_tensor *t, json_t *to)
{
    ProtobufCBinaryData text;
    json_t *given;
    TRY(read_single_text(t, &text));
    enum status status = json_body_parse(text.len ? (const char *)text.data : "", text.len, &given);
    if (status != STATUS_OK) return status_context(status, "input 'sampling_parameters'");
    json_object_update(to, given);
    json_decref(given);
    return STATUS_OK;
}

// An input tensor that is the value of one parameter.
struct parameter_tensor {
    const char *tensor, *parameter; // names
    bool list;                      // the parameter is the list of the tensor's elements
};
static const struct parameter_tensor parameter_tensors[] = {
    {"stop", "stop", true},
    {"stop_words", "stop", true},
    {"bad_words", "bad_words", true},
    {"stop_token_ids", "stop_token_ids", true},
    {"end_id", "stop_token_ids", true},
    {"request_output_len", "max_tokens", false},
    {"min_length", "min_tokens", false},
    {"random_seed", "seed", false},
    {"prefill", "prefill", false},
    {"drafts", "drafts", false},
    {"beam_width", "beam_width", false},
    {"num_return_sequences", "num_return_sequences", false},
    {"length_penalty", "length_penalty", false},
    {"pad_id", "pad_id", false}, // nothing is padded
};

static bool is_generation_field(const struct generation_field *fields, const char *name)
{
    while (fields->name && strcmp(fields->name, name) != 0)
        fields++;
    return fields->name;
}

// Finds the parameter of a tensor. Returns false if no parameter has a tensor of this name.
static bool find_parameter_tensor(const char *name, struct parameter_tensor *found_p)
{
    for (size_t i = 0; i < sizeof parameter_tensors / sizeof *parameter_tensors; i++) {
        *found_p = parameter_tensors[i];
        if (strcmp(found_p->tensor, name) == 0) return true;
    }
    *found_p = (struct parameter_tensor){name, name, false};
    for (const struct json_field *f = flags; f->name; f++)
        if (strcmp(f->name, name) == 0) return true;
    return is_generation_field(sampling_fields, name) || is_generation_field(prefill_fields, name);
}

static json_t *element_json(const struct kserve_tensor *t, struct kserve_place *place)
{
    ProtobufCBinaryData text;
    size_t i = place->i;
    if (t->kind == KSERVE_BYTES) {
        kserve_tensor_next(t, place, &text);
        return json_stringn(text.len ? (const char *)text.data : "", text.len);
    }
    place->i++;
    if (t->kind == KSERVE_BOOL) return json_boolean(kserve_tensor_bool(t, i));
    return t->kind == KSERVE_REAL ? json_real(kserve_tensor_real(t, i)) : json_integer(kserve_tensor_integer(t, i));
}

static enum status add_list_tensor(const struct kserve_tensor *t, const char *parameter, json_t *to)
{
    struct kserve_place place = {0};
    if (t->n > PARAMETER_ELEMENTS_MAX)
        return status_fail(STATUS_INVALID, "input '%s': %zu elements given, at most %d are allowed", t->name, t->n,
                           PARAMETER_ELEMENTS_MAX);
    json_t *list = json_array();
    bool valid = true;
    while (place.i < t->n && valid) {
        json_t *value = element_json(t, &place);
        valid = value;
        // clients of TensorRT-LLM pad lists with empty strings
        if (json_is_string(value) && !json_string_length(value))
            json_decref(value);
        else
            json_array_append_new(list, value);
    }
    if (valid && json_array_size(list)) return set_parameter(to, parameter, list);
    json_decref(list);
    return valid ? STATUS_OK : set_parameter(to, t->name, NULL);
}

static enum status add_parameter_tensor(const struct kserve_tensor *t, json_t *to)
{
    struct parameter_tensor found;
    struct kserve_place place = {0};
    if (!find_parameter_tensor(t->name, &found))
        return status_fail(STATUS_INVALID, "input '%s': the model has no input of this name: ModelMetadata lists them",
                           t->name);
    if (found.list) return add_list_tensor(t, found.parameter, to);
    TRY(check_single(t));
    return set_parameter(to, found.parameter, element_json(t, &place));
}

// --- numbers and lists given as strings

// Converts strings to values: Triton's vLLM backend allows {"temperature": "0.5"}.
static void values_from_strings(json_t *parameters)
{
    static const char *const texts[] = {"stop",           "tenant",     "user",        "prefill",
                                        "drafts",         "model",      "guided_json", "guided_regex",
                                        "guided_grammar", "cache_salt", NULL};
    size_t left = PARAMETER_JSON_BYTES_MAX;
    const char *name;
    void *next;
    json_t *value;
    json_object_foreach_safe(parameters, next, name, value)
    {
        size_t n = json_string_length(value);
        if (!json_is_string(value) || n > left || is_one_of(name, texts)) continue;
        left -= n;
        json_t *parsed = json_loadb(json_string_value(value), n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (parsed) json_object_set_new(parameters, name, parsed);
    }
}

// --- the prompt

static enum status read_ids(const struct kserve_tensor *t, struct kserve_request *q)
{
    if (t->kind != KSERVE_SIGNED && t->kind != KSERVE_UNSIGNED) return check_kind(t, KSERVE_SIGNED, "INT32 or INT64");
    if (t->rank > 2 || (t->rank == 2 && t->shape[0] != 1))
        return status_fail(STATUS_INVALID,
                           "input '%s': its shape must be [tokens] or [1, tokens]: send a request for "
                           "each prompt",
                           t->name);
    q->ids = mem_alloc_array(t->n + 1, sizeof *q->ids);
    for (size_t i = 0; i < t->n; i++) {
        int64_t id = kserve_tensor_integer(t, i);
        if (id < 0 || id > UINT32_MAX)
            return status_fail(STATUS_INVALID, "input '%s': %lld at index %zu is not a token id", t->name,
                               (long long)id, i);
        q->ids[i] = (uint32_t)id;
    }
    q->fields.message.token_ids = q->ids;
    q->fields.message.n_token_ids = t->n;
    return STATUS_OK;
}

static enum status check_lengths(const struct kserve_tensor *lengths, size_t n_ids)
{
    if (lengths->kind != KSERVE_UNSIGNED) TRY(check_kind(lengths, KSERVE_SIGNED, "INT32 or INT64"));
    TRY(check_single(lengths));
    int64_t given = kserve_tensor_integer(lengths, 0);
    if (given >= 0 && (uint64_t)given == n_ids) return STATUS_OK;
    return status_fail(STATUS_INVALID, "input 'input_lengths': %lld, but input_ids has %zu tokens", (long long)given,
                       n_ids);
}

struct inputs {
    const struct kserve_tensor *text, *ids, *lengths, *sampling;
};

static enum status read_prompt(const struct inputs *in, struct kserve_request *q)
{
    if (in->text && in->ids) return status_fail(STATUS_INVALID, "give only one of the inputs text_input and input_ids");
    if (!in->text && !in->ids) return status_fail(STATUS_INVALID, "give one of the inputs text_input and input_ids");
    if (in->text) TRY(read_single_text(in->text, &q->fields.message.text));
    if (in->ids) TRY(read_ids(in->ids, q));
    if (in->lengths) TRY(check_lengths(in->lengths, q->fields.message.n_token_ids));
    if (!q->fields.message.text.len && !q->fields.message.n_token_ids)
        return status_fail(STATUS_INVALID, "the prompt is empty: give one of the inputs text_input and input_ids");
    return STATUS_OK;
}

// --- outputs

static enum status check_output(const Inference__ModelInferRequest__InferRequestedOutputTensor *m)
{
    for (size_t i = 0; i < m->n_parameters; i++) {
        const char *key = m->parameters[i]->key;
        if (strncmp(key, "shared_memory_", 14) == 0 || strcmp(key, "classification") == 0)
            return status_fail(STATUS_UNSUPPORTED, "output '%s': neither shared memory nor classification is supported",
                               m->name);
    }
    return STATUS_OK;
}

static enum status find_output(const Inference__ModelInferRequest__InferRequestedOutputTensor *m, unsigned *outputs)
{
    TRY(intake_check_name("the name of an output", m->name));
    TRY(check_output(m));
    for (int k = 0; k < KSERVE_OUTPUT_COUNT; k++) {
        if (strcmp(kserve_outputs[k].name, m->name) != 0) continue;
        *outputs |= 1u << k;
        return STATUS_OK;
    }
    return status_fail(STATUS_INVALID, "output '%s': the model has no output of this name: ModelMetadata lists them",
                       m->name);
}

// Reads the outputs that the request names. A request that names no output gets the text and the outputs of its
// return_* parameters. If its prompt is token ids, it also gets token ids.
static enum status read_outputs(const Inference__ModelInferRequest *m, const struct values *v, struct kserve_request *q)
{
    if (m->n_outputs > KSERVE_TENSORS_MAX)
        return status_fail(STATUS_INVALID, "outputs: %zu given, at most %d are allowed", m->n_outputs,
                           KSERVE_TENSORS_MAX);
    for (size_t i = 0; i < m->n_outputs; i++)
        TRY(find_output(m->outputs[i], &q->outputs));
    if (m->n_outputs) return STATUS_OK;
    q->outputs = 1u << KSERVE_TEXT;
    if (q->ids) q->outputs |= 1u << KSERVE_IDS;
    for (int k = 0; k < KSERVE_OUTPUT_COUNT; k++)
        if (v->returns[k]) q->outputs |= 1u << k;
    return STATUS_OK;
}

static enum status read_logprobs(const struct values *v, struct kserve_request *q)
{
    int n = 0;
    if (!(q->outputs & (1u << KSERVE_LOGPROBS | 1u << KSERVE_CUMULATIVE_LOGPROB))) return STATUS_OK;
    if (v->logprobs) TRY(json_read_int("logprobs", v->logprobs, &n));
    return json_generation_set_logprobs(&q->fields, "logprobs", n);
}

// --- the request

static enum status read_tensors(const struct kserve_tensor *tensors, size_t n, struct inputs *in, json_t *parameters)
{
    for (size_t i = 0; i < n; i++) {
        const struct kserve_tensor *t = &tensors[i], **place = strcmp(t->name, "text_input") == 0      ? &in->text
                                                               : strcmp(t->name, "input_ids") == 0     ? &in->ids
                                                               : strcmp(t->name, "input_lengths") == 0 ? &in->lengths
                                                               : strcmp(t->name, "sampling_parameters") == 0
                                                                   ? &in->sampling
                                                                   : NULL;
        if (place) *place = t;
    }
    if (in->sampling) TRY(add_sampling_parameters(in->sampling, parameters));
    for (size_t i = 0; i < n; i++) {
        const struct kserve_tensor *t = &tensors[i];
        if (t != in->text && t != in->ids && t != in->lengths && t != in->sampling)
            TRY(add_parameter_tensor(t, parameters));
    }
    return STATUS_OK;
}

static enum status read_parameters(const Inference__ModelInferRequest *m, struct inputs *in,
                                   struct kserve_tensor tensors[KSERVE_TENSORS_MAX], struct kserve_request *q)
{
    size_t n;
    TRY(kserve_tensors_read(m, tensors, &n));
    TRY(add_request_parameters(m, q->parameters));
    TRY(read_tensors(tensors, n, in, q->parameters));
    values_from_strings(q->parameters);
    return json_unsupported_check(q->parameters, unsupported);
}

enum status kserve_check_version(const char *model, const char *version)
{
    TRY(intake_check_name("the model's version", version));
    if (!*version || strcmp(version, KSERVE_VERSION) == 0) return STATUS_OK;
    return status_fail(STATUS_NOT_FOUND, "model '%s' has no version '%s': leave it out or ask for '%s'", model, version,
                       KSERVE_VERSION);
}

// Sets q->echo: the answer repeats the prompt. As in Triton's vLLM backend, a whole answer repeats it unless the
// request says otherwise. A stream never repeats it.
static enum status read_echo(const struct values *v, struct kserve_request *q)
{
    const json_t *given = json_object_get(q->parameters, "exclude_input_in_output");
    q->echo = given ? !v->exclude_input_in_output : !q->stream;
    if (!q->echo || !q->stream) return STATUS_OK;
    return status_fail(STATUS_INVALID, "exclude_input_in_output: must be true with stream");
}

enum status kserve_request_read(const Inference__ModelInferRequest *m, struct kserve_request *q)
{
    struct kserve_tensor tensors[KSERVE_TENSORS_MAX];
    struct inputs in = {0};
    struct values v = {0};
    *q = (struct kserve_request){.parameters = json_object()};
    TRY(intake_check_name("id", m->id));
    TRY(intake_check_name("model_name", m->model_name));
    TRY(kserve_check_version(m->model_name, m->model_version));
    TRY(read_parameters(m, &in, tensors, q));
    TRY(json_fields_read(q->parameters, flags, &v));
    TRY(json_generation_read(q->parameters, &q->fields));
    q->fields.message.model = m->model_name;
    q->stream = v.stream;
    q->empty_final = v.triton_enable_empty_final_response;
    TRY(read_echo(&v, q));
    TRY(read_prompt(&in, q));
    TRY(read_outputs(m, &v, q));
    TRY(read_logprobs(&v, q));
    return json_generation_finish(&q->fields);
}

void kserve_request_fini(struct kserve_request *q)
{
    json_generation_fini(&q->fields);
    json_decref(q->parameters);
    free(q->ids);
}
