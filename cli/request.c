// SPDX-License-Identifier: Apache-2.0
#include "cli/request.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct request_flags request_flags;

enum { FILE_BYTES_MAX = 64 << 20 };

int exit_code(enum status status)
{
    switch (status) {
    case STATUS_OK: return 0;
    case STATUS_INVALID:
    case STATUS_NOT_FOUND:
    case STATUS_UNSUPPORTED: return 2;
    default: return 1;
    }
}

int report_failure(enum status status)
{
    fprintf(stderr, "%s\n", status_message());
    return exit_code(status);
}

static int clamp_int(int64_t value)
{
    return value > INT_MAX ? INT_MAX : value < INT_MIN ? INT_MIN : (int)value;
}

static enum prefill_mode mode_of(const char *name)
{
    return strcmp(name, "on") == 0 ? PREFILL_ON : strcmp(name, "off") == 0 ? PREFILL_OFF : PREFILL_AUTO;
}

static enum status add_stop(struct request_spec *spec, const char *text)
{
    size_t length = strlen(text);
    if (!length || length > STOP_STRING_BYTES_MAX || spec->n_stop == STOP_STRINGS_MAX) {
        return status_fail(STATUS_INVALID, "stop: must be at most %d strings of 1 to %d bytes", STOP_STRINGS_MAX,
                           STOP_STRING_BYTES_MAX);
    }
    spec->stop = mem_resize(spec->stop, (size_t)spec->n_stop + 1, sizeof *spec->stop);
    spec->stop[spec->n_stop++] = mem_string(text);
    return STATUS_OK;
}

static enum status add_stop_id(struct sampling *s, int64_t id)
{
    if (s->n_stop_ids == STOP_IDS_MAX || id < 0 || id > INT_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: must be at most %d token ids of 0 or more", STOP_IDS_MAX);
    }
    s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    return STATUS_OK;
}

static enum status check(const struct request_spec *spec)
{
    // The vocabulary is the server's to know.
    enum status status = sampling_check(&spec->sampling, INT_MAX);
    return status == STATUS_OK ? prefill_check(&spec->prefill) : status;
}

enum status request_spec_from_flags(const struct option *table, struct request_spec *spec)
{
    const struct request_flags *f = &request_flags;
    *spec = (struct request_spec){0};
    struct sampling *s = &spec->sampling;
    sampling_defaults(s);
    s->max_tokens = clamp_int(f->max_tokens);
    if (options_given(table, "max-tokens") && s->max_tokens < 1) {
        return status_fail(STATUS_INVALID, "--max-tokens %d: must be 1 or more", s->max_tokens);
    }
    s->min_tokens = clamp_int(f->min_tokens);
    s->temperature = f->temperature;
    s->top_k = clamp_int(f->top_k);
    s->top_p = f->top_p;
    s->min_p = f->min_p;
    s->seed = (uint64_t)f->seed;
    spec->seed_given = options_given(table, "seed");
    s->repetition_penalty = f->repetition_penalty;
    s->presence_penalty = f->presence_penalty;
    s->frequency_penalty = f->frequency_penalty;
    s->ignore_eos = f->ignore_eos;
    if (options_given(table, "logprobs")) s->logprobs = f->logprobs < 0 ? LOGPROBS_MAX + 1 : clamp_int(f->logprobs);
    prefill_defaults(&spec->prefill);
    spec->prefill.mode = mode_of(f->prefill);
    spec->prefill.keep_rate = f->keep_rate;
    spec->prefill.look_ahead = clamp_int(f->look_ahead);
    spec->prefill.chunk_tokens = clamp_int(f->chunk_tokens);
    spec->prefill.pool_window = clamp_int(f->pool_window);
    spec->prefill.paper_exact = f->paper_exact;
    spec->return_kept = f->return_kept;
    spec->priority = (int32_t)f->priority;
    spec->tenant = mem_string(f->tenant);
    spec->model_name = mem_string(f->model_name);
    spec->ttft_deadline_ms = f->ttft_deadline_ms;
    enum status status = STATUS_OK;
    for (int i = 0; i < f->stop.count && status == STATUS_OK; i++)
        status = add_stop(spec, f->stop.items[i]);
    for (int i = 0; i < f->stop_token_ids.count && status == STATUS_OK; i++) {
        char *end;
        long id = strtol(f->stop_token_ids.items[i], &end, 10);
        status = add_stop_id(s, *end || end == f->stop_token_ids.items[i] ? -1 : id);
    }
    return status == STATUS_OK ? check(spec) : status;
}

// --- JSON rows

static enum status wrong_type(const char *key, const char *expected)
{
    return status_fail(STATUS_INVALID, "%s: must be %s", key, expected);
}

static enum status take_int(const char *key, const json_t *value, int *out)
{
    if (!json_is_integer(value)) return wrong_type(key, "a whole number");
    *out = clamp_int(json_integer_value(value));
    return STATUS_OK;
}

static enum status take_real(const char *key, const json_t *value, double *out)
{
    if (!json_is_number(value)) return wrong_type(key, "a number");
    *out = json_number_value(value);
    return STATUS_OK;
}

static enum status take_bool(const char *key, const json_t *value, bool *out)
{
    if (!json_is_boolean(value)) return wrong_type(key, "true or false");
    *out = json_is_true(value);
    return STATUS_OK;
}

static enum status take_string(const char *key, const json_t *value, char **out)
{
    if (!json_is_string(value)) return wrong_type(key, "a string");
    free(*out);
    *out = mem_string(json_string_value(value));
    return STATUS_OK;
}

static void drop_prompt(struct request_spec *spec)
{
    free(spec->text);
    free(spec->token_ids);
    for (int i = 0; i < spec->n_messages; i++) {
        free(spec->messages[i].role);
        free(spec->messages[i].content);
    }
    free(spec->messages);
    spec->text = NULL;
    spec->text_bytes = 0;
    spec->token_ids = NULL;
    spec->n_token_ids = 0;
    spec->messages = NULL;
    spec->n_messages = 0;
}

static enum status take_prompt(const char *key, const json_t *value, struct request_spec *spec)
{
    drop_prompt(spec);
    if (strcmp(key, "prompt") == 0) {
        if (!json_is_string(value)) return wrong_type(key, "a string");
        spec->text_bytes = json_string_length(value);
        spec->text = mem_copy(json_string_value(value), spec->text_bytes + 1);
        return STATUS_OK;
    }
    if (!json_is_array(value)) return wrong_type(key, "a list");
    size_t n = json_array_size(value);
    if (strcmp(key, "token_ids") == 0) {
        spec->token_ids = mem_alloc_array(n + 1, sizeof *spec->token_ids);
        for (size_t i = 0; i < n; i++) {
            const json_t *id = json_array_get(value, i);
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT_MAX) {
                return wrong_type(key, "a list of token ids");
            }
            spec->token_ids[spec->n_token_ids++] = (int32_t)json_integer_value(id);
        }
        return STATUS_OK;
    }
    spec->messages = mem_alloc_array(n + 1, sizeof *spec->messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *turn = json_array_get(value, i);
        const char *role = json_string_value(json_object_get(turn, "role"));
        const char *content = json_string_value(json_object_get(turn, "content"));
        if (!role || !content) return wrong_type(key, "a list of {\"role\": ..., \"content\": ...}");
        spec->messages[spec->n_messages++] = (struct request_message){mem_string(role), mem_string(content)};
    }
    return STATUS_OK;
}

static enum status take_stop(const json_t *value, struct request_spec *spec)
{
    for (int i = 0; i < spec->n_stop; i++)
        free(spec->stop[i]);
    spec->n_stop = 0;
    if (json_is_string(value)) return add_stop(spec, json_string_value(value));
    if (!json_is_array(value)) return wrong_type("stop", "a string or a list of strings");
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item)) return wrong_type("stop", "a string or a list of strings");
        enum status status = add_stop(spec, json_string_value(item));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status take_stop_ids(const json_t *value, struct sampling *s)
{
    if (!json_is_array(value)) return wrong_type("stop_token_ids", "a list of token ids");
    s->n_stop_ids = 0;
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        enum status status = add_stop_id(s, json_is_integer(item) ? json_integer_value(item) : -1);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status take_mode(const json_t *value, struct prefill *p)
{
    const char *name = json_string_value(value);
    if (!name || (strcmp(name, "auto") != 0 && strcmp(name, "on") != 0 && strcmp(name, "off") != 0)) {
        return wrong_type("prefill", "auto, on or off");
    }
    p->mode = mode_of(name);
    return STATUS_OK;
}

static enum status take_max_tokens(const json_t *value, struct sampling *s)
{
    enum status status = take_int("max_tokens", value, &s->max_tokens);
    if (status == STATUS_OK && s->max_tokens < 1) {
        return status_fail(STATUS_INVALID, "max_tokens %d: must be 1 or more", s->max_tokens);
    }
    return status;
}

static enum status take_field(struct request_spec *spec, const char *key, const json_t *value, bool *known_p)
{
    struct sampling *s = &spec->sampling;
    struct prefill *p = &spec->prefill;
    const struct {
        const char *key;
        int *i;
        double *d;
        bool *b;
        char **text;
    } plain[] = {
        {"min_tokens", .i = &s->min_tokens},
        {"top_k", .i = &s->top_k},
        {"logprobs", .i = &s->logprobs},
        {"look_ahead", .i = &p->look_ahead},
        {"chunk_tokens", .i = &p->chunk_tokens},
        {"pool_window", .i = &p->pool_window},
        {"priority", .i = &spec->priority},
        {"temperature", .d = &s->temperature},
        {"top_p", .d = &s->top_p},
        {"min_p", .d = &s->min_p},
        {"repetition_penalty", .d = &s->repetition_penalty},
        {"presence_penalty", .d = &s->presence_penalty},
        {"frequency_penalty", .d = &s->frequency_penalty},
        {"keep_rate", .d = &p->keep_rate},
        {"ignore_eos", .b = &s->ignore_eos},
        {"paper_exact", .b = &p->paper_exact},
        {"return_kept", .b = &spec->return_kept},
        {"tenant", .text = &spec->tenant},
        {"model", .text = &spec->model_name},
    };
    *known_p = true;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(plain[i].key, key) != 0) continue;
        if (plain[i].i) return take_int(key, value, plain[i].i);
        if (plain[i].d) return take_real(key, value, plain[i].d);
        if (plain[i].b) return take_bool(key, value, plain[i].b);
        return take_string(key, value, plain[i].text);
    }
    if (strcmp(key, "id") == 0) {
        if (json_is_integer(value)) {
            free(spec->id);
            spec->id = mem_format("%lld", (long long)json_integer_value(value));
            return STATUS_OK;
        }
        return take_string(key, value, &spec->id);
    }
    if (strcmp(key, "prompt") == 0 || strcmp(key, "token_ids") == 0 || strcmp(key, "messages") == 0) {
        return take_prompt(key, value, spec);
    }
    if (strcmp(key, "max_tokens") == 0) return take_max_tokens(value, s);
    if (strcmp(key, "stop") == 0) return take_stop(value, spec);
    if (strcmp(key, "stop_token_ids") == 0) return take_stop_ids(value, s);
    if (strcmp(key, "prefill") == 0) return take_mode(value, p);
    if (strcmp(key, "seed") == 0) {
        if (!json_is_integer(value)) return wrong_type(key, "a whole number");
        s->seed = (uint64_t)json_integer_value(value);
        spec->seed_given = true;
        return STATUS_OK;
    }
    if (strcmp(key, "ttft_deadline_ms") == 0) {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX) {
            return wrong_type(key, "a whole number from 0 to 4294967295");
        }
        spec->ttft_deadline_ms = json_integer_value(value);
        return STATUS_OK;
    }
    *known_p = false;
    return STATUS_OK;
}

enum status request_spec_from_json(struct request_spec *spec, json_t *row, const char **unknown_p)
{
    if (!json_is_object(row)) return status_fail(STATUS_INVALID, "a row must be a JSON object");
    const char *key;
    json_t *value;
    int prompts = 0;
    json_object_foreach(row, key, value)
    {
        bool known;
        enum status status = take_field(spec, key, value, &known);
        if (status != STATUS_OK) return status;
        if (!known && unknown_p && !*unknown_p) *unknown_p = key;
    }
    prompts =
        !!json_object_get(row, "prompt") + !!json_object_get(row, "token_ids") + !!json_object_get(row, "messages");
    if (prompts != 1) return status_fail(STATUS_INVALID, "a row needs exactly one of prompt, token_ids, messages");
    return check(spec);
}

void request_spec_copy(const struct request_spec *from, struct request_spec *to)
{
    *to = *from;
    to->id = mem_string(from->id);
    to->model_name = mem_string(from->model_name);
    to->tenant = mem_string(from->tenant);
    if (from->text) to->text = mem_copy(from->text, from->text_bytes + 1);
    if (from->token_ids) to->token_ids = mem_copy(from->token_ids, (size_t)from->n_token_ids * sizeof *to->token_ids);
    if (from->messages) to->messages = mem_alloc_array((size_t)from->n_messages + 1, sizeof *to->messages);
    for (int i = 0; i < from->n_messages; i++) {
        to->messages[i].role = mem_string(from->messages[i].role);
        to->messages[i].content = mem_string(from->messages[i].content);
    }
    if (from->stop) to->stop = mem_alloc_array((size_t)from->n_stop + 1, sizeof *to->stop);
    for (int i = 0; i < from->n_stop; i++)
        to->stop[i] = mem_string(from->stop[i]);
}

void request_spec_free(struct request_spec *spec)
{
    drop_prompt(spec);
    free(spec->id);
    free(spec->model_name);
    free(spec->tenant);
    for (int i = 0; i < spec->n_stop; i++)
        free(spec->stop[i]);
    free(spec->stop);
    *spec = (struct request_spec){0};
}

// --- the wire

Forepack__V1__PrefillOptions *request_prefill_message(const struct request_spec *spec)
{
    static const Forepack__V1__PrefillMode modes[] = {
        FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO,
        FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON,
        FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF,
    };
    const struct prefill *p = &spec->prefill;
    Forepack__V1__PrefillOptions *m = mem_alloc(sizeof *m);
    forepack__v1__prefill_options__init(m);
    m->mode = modes[p->mode];
    m->keep_rate_given_case = FOREPACK__V1__PREFILL_OPTIONS__KEEP_RATE_GIVEN_KEEP_RATE;
    m->keep_rate = p->keep_rate;
    m->look_ahead_given_case = FOREPACK__V1__PREFILL_OPTIONS__LOOK_AHEAD_GIVEN_LOOK_AHEAD;
    m->look_ahead = (uint32_t)p->look_ahead;
    m->chunk_tokens_given_case = FOREPACK__V1__PREFILL_OPTIONS__CHUNK_TOKENS_GIVEN_CHUNK_TOKENS;
    m->chunk_tokens = (uint32_t)p->chunk_tokens;
    m->pool_window_given_case = FOREPACK__V1__PREFILL_OPTIONS__POOL_WINDOW_GIVEN_POOL_WINDOW;
    m->pool_window = (uint32_t)p->pool_window;
    if (p->paper_exact) {
        m->paper_exact_given_case = FOREPACK__V1__PREFILL_OPTIONS__PAPER_EXACT_GIVEN_PAPER_EXACT;
        m->paper_exact = true;
    }
    m->return_kept = spec->return_kept;
    return m;
}

static void fill_sampling(const struct request_spec *spec, Forepack__V1__SamplingOptions *m)
{
    const struct sampling *s = &spec->sampling;
    forepack__v1__sampling_options__init(m);
    if (s->max_tokens) {
        m->max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
        m->max_tokens = (uint32_t)s->max_tokens;
    }
    m->min_tokens = (uint32_t)s->min_tokens;
    m->temperature = s->temperature;
    m->top_k = (uint32_t)s->top_k;
    m->top_p_given_case = FOREPACK__V1__SAMPLING_OPTIONS__TOP_P_GIVEN_TOP_P;
    m->top_p = s->top_p;
    m->min_p = s->min_p;
    if (spec->seed_given) {
        m->seed_given_case = FOREPACK__V1__SAMPLING_OPTIONS__SEED_GIVEN_SEED;
        m->seed = s->seed;
    }
    m->repetition_penalty_given_case = FOREPACK__V1__SAMPLING_OPTIONS__REPETITION_PENALTY_GIVEN_REPETITION_PENALTY;
    m->repetition_penalty = s->repetition_penalty;
    m->presence_penalty = s->presence_penalty;
    m->frequency_penalty = s->frequency_penalty;
    m->ignore_eos = s->ignore_eos;
    if (s->logprobs >= 0) {
        m->logprobs_given_case = FOREPACK__V1__SAMPLING_OPTIONS__LOGPROBS_GIVEN_LOGPROBS;
        m->logprobs = (uint32_t)s->logprobs;
    }
}

struct rpc_bytes request_spec_pack(const struct request_spec *spec)
{
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    Forepack__V1__SamplingOptions sampling;
    fill_sampling(spec, &sampling);
    request.sampling = &sampling;
    request.prefill = request_prefill_message(spec);
    if (spec->id) request.request_id = spec->id;
    if (spec->model_name) request.model = spec->model_name;
    if (spec->tenant) request.tenant = spec->tenant;
    request.priority = spec->priority;
    request.ttft_deadline_ms = (uint32_t)spec->ttft_deadline_ms;
    request.text.data = (uint8_t *)spec->text;
    request.text.len = spec->text_bytes;
    request.token_ids = (uint32_t *)spec->token_ids;
    request.n_token_ids = (size_t)spec->n_token_ids;

    Forepack__V1__Message *turns = mem_alloc_array((size_t)spec->n_messages + 1, sizeof *turns);
    Forepack__V1__Message **turn_list = mem_alloc_array((size_t)spec->n_messages + 1, sizeof *turn_list);
    for (int i = 0; i < spec->n_messages; i++) {
        forepack__v1__message__init(&turns[i]);
        turns[i].role = spec->messages[i].role;
        turns[i].content.data = (uint8_t *)spec->messages[i].content;
        turns[i].content.len = strlen(spec->messages[i].content);
        turn_list[i] = &turns[i];
    }
    request.messages = turn_list;
    request.n_messages = (size_t)spec->n_messages;

    ProtobufCBinaryData *stops = mem_alloc_array((size_t)spec->n_stop + 1, sizeof *stops);
    for (int i = 0; i < spec->n_stop; i++)
        stops[i] = (ProtobufCBinaryData){strlen(spec->stop[i]), (uint8_t *)spec->stop[i]};
    sampling.stop = stops;
    sampling.n_stop = (size_t)spec->n_stop;
    sampling.stop_token_ids = (uint32_t *)spec->sampling.stop_ids;
    sampling.n_stop_token_ids = (size_t)spec->sampling.n_stop_ids;

    struct rpc_bytes bytes = {.size = forepack__v1__generate_request__get_packed_size(&request)};
    bytes.data = mem_alloc(bytes.size);
    forepack__v1__generate_request__pack(&request, bytes.data);
    free(stops);
    free(turn_list);
    free(turns);
    free(request.prefill);
    return bytes;
}

// --- prompts from files

enum status read_whole_file(const char *path, char **data_p, size_t *size_p)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!file) return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    char *data = NULL;
    size_t size = 0, capacity = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        if (capacity - size < 4096) {
            capacity = capacity ? 2 * capacity : 65536;
            data = mem_resize(data, capacity + 1, 1);
        }
        size_t got = fread(data + size, 1, capacity - size, file);
        size += got;
        if (!got) {
            if (ferror(file)) status = status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
            break;
        }
        if (size > FILE_BYTES_MAX) status = status_fail(STATUS_INVALID, "%s: larger than 64 MiB", path);
    }
    if (file != stdin) fclose(file);
    if (status != STATUS_OK) {
        free(data);
        return status;
    }
    data[size] = 0;
    *data_p = data;
    *size_p = size;
    return STATUS_OK;
}

enum status request_read_prompt(const char *prompt, const char *prompt_file, char *const *rest, int n_rest,
                                struct request_spec *spec)
{
    bool from_stdin = n_rest == 1 && strcmp(rest[0], "-") == 0;
    if (n_rest && !from_stdin) {
        return status_fail(STATUS_INVALID, "unexpected argument '%s' (the prompt goes into --prompt)", rest[0]);
    }
    if (!!prompt + !!prompt_file + from_stdin != 1) {
        return status_fail(STATUS_INVALID, "give the prompt by exactly one of --prompt TEXT, --prompt-file F, -");
    }
    if (prompt) {
        spec->text = mem_string(prompt);
        spec->text_bytes = strlen(prompt);
    } else {
        enum status status = read_whole_file(from_stdin ? "-" : prompt_file, &spec->text, &spec->text_bytes);
        if (status != STATUS_OK) return status;
    }
    return spec->text_bytes ? STATUS_OK
                            : status_fail(STATUS_INVALID, "the prompt is empty: give at least one character");
}
