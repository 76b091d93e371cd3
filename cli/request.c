// SPDX-License-Identifier: Apache-2.0
#include "cli/request.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "lib/text/grammar_json.h"
#include "lib/text/grammar_message.h"
#include "lib/text/logit_bias_entries.h"

struct request_flags request_flags;

enum { FILE_BYTES_MAX = 64 << 20 };

int report_failure(enum status status)
{
    fprintf(stderr, "%s\n", status_message());
    return status_exit_code(status);
}

void report_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(object);
}

static int clamp_int(int64_t value)
{
    return value > INT_MAX ? INT_MAX : value < INT_MIN ? INT_MIN : (int)value;
}

static enum status stop_add(struct request_spec *spec, const char *text)
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

static enum status stop_id_add(struct sampling *s, int64_t id)
{
    if (s->n_stop_ids == STOP_IDS_MAX || id < 0 || id > INT_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: must be at most %d token ids of 0 or more", STOP_IDS_MAX);
    }
    s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    return STATUS_OK;
}

static enum status spec_check(const struct request_spec *spec)
{
    enum status status = sampling_check(&spec->sampling, INT_MAX); // the router checks against the vocabulary
    return status == STATUS_OK ? prefill_check(&spec->prefill) : status;
}

// --- flags

#define FLAG_VALUE_INT(value)           clamp_int(value)
#define FLAG_VALUE_OPTIONAL(value)      clamp_int(value)
#define FLAG_VALUE_INT_OR_AUTO(value)   clamp_int(value)
#define FLAG_VALUE_UINT64(value)        (uint64_t)(value)
#define FLAG_VALUE_REAL(value)          (value)
#define FLAG_VALUE_ROUTER_REAL(value)   (value)
#define FLAG_VALUE_OPTIONAL_REAL(value) (value)
#define FLAG_VALUE_BOOL(value)          (value)
#define COPY_GIVEN(object, type, field, flag)                                                                          \
    if (options_given(table, flag)) {                                                                                  \
        spec->object.field = FLAG_VALUE_##type(request_flags.field);                                                   \
        spec->object##_given |= generation_field_bit(object##_fields, #field);                                         \
    }
#define COPY_TO_SAMPLING(type, field, flag, ...) COPY_GIVEN(sampling, type, field, flag)
#define COPY_TO_PREFILL(type, field, flag, ...)  COPY_GIVEN(prefill, type, field, flag)

// Reads "ID=BIAS,ID=BIAS".
static enum status logit_bias_parse(const char *text, struct logit_bias *bias)
{
    const char *at = text;
    do {
        char *after_id, *end;
        errno = 0;
        long long id = strtoll(at, &after_id, 10);
        double number = *after_id == '=' ? strtod(after_id + 1, &end) : 0;
        if (errno || after_id == at || *after_id != '=' || end == after_id + 1 || (*end && *end != ','))
            return status_fail(STATUS_INVALID, "--logit-bias %s: must be ID=BIAS, such as 5=-100,7=2.5", text);
        TRY(logit_bias_add(bias, id, number));
        at = end + (*end == ',');
    } while (at[-1] == ',');
    return STATUS_OK;
}

static enum status logit_bias_from_flags(struct logit_bias *bias)
{
    const struct option_list *list = &request_flags.logit_bias;
    enum status status = STATUS_OK;
    for (int i = 0; i < list->count && status == STATUS_OK; i++)
        status = logit_bias_parse(list->items[i], bias);
    return status;
}

// Reads the grammar of --guided-json, --guided-regex, --guided-grammar or --guided-choice.
static enum status grammar_from_flags(struct grammar_spec *spec)
{
    const struct request_flags *f = &request_flags;
    const struct grammar_spec given[] = {grammar_spec_of(GRAMMAR_JSON_SCHEMA, f->guided_json),
                                         grammar_spec_of(GRAMMAR_REGEX, f->guided_regex),
                                         grammar_spec_of(GRAMMAR_LARK, f->guided_grammar)};
    int n = 0;
    if (f->guided_choice.count) {
        n++;
        *spec = grammar_spec_choice((const char *const *)f->guided_choice.items, (size_t)f->guided_choice.count);
    }
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i].text && n++ == 0) *spec = grammar_spec_copy(&given[i]);
    if (n <= 1) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--guided-json, --guided-regex, --guided-grammar, --guided-choice: give only one");
}

static enum status stop_from_flags(struct request_spec *spec)
{
    const struct request_flags *f = &request_flags;
    enum status status = STATUS_OK;
    for (int i = 0; i < f->stop.count && status == STATUS_OK; i++)
        status = stop_add(spec, f->stop.items[i]);
    for (int i = 0; i < f->stop_token_ids.count && status == STATUS_OK; i++) {
        char *end;
        long id = strtol(f->stop_token_ids.items[i], &end, 10);
        status = stop_id_add(&spec->sampling, *end || end == f->stop_token_ids.items[i] ? -1 : id);
    }
    return status;
}

enum status request_spec_from_flags(const struct option *table, struct request_spec *spec)
{
    const struct request_flags *f = &request_flags;
    *spec = (struct request_spec){0};
    sampling_defaults(&spec->sampling);
    prefill_defaults(&spec->prefill);
    SAMPLING_FIELDS(COPY_TO_SAMPLING)
    PREFILL_FIELDS(COPY_TO_PREFILL)
    if (options_given(table, "max-tokens") && f->max_tokens < 1) // 0 in struct request_spec means "not given"
        return status_fail(STATUS_INVALID, "--max-tokens %lld: must be 1 or more", (long long)f->max_tokens);
    if (options_given(table, "quality") && f->quality <= 0) // 0 in struct request_spec means "not given"
        return status_fail(STATUS_INVALID, "--quality %.10g: must be over 0 and at most 1", f->quality);
    spec->prefill_mode_given = f->prefill && prefill_mode_parse(f->prefill, &spec->prefill.mode);
    spec->draft_mode_given = f->drafts && draft_mode_parse(f->drafts, &spec->prefill.drafts);
    spec->return_kept = f->return_kept;
    spec->priority = (int32_t)f->priority;
    spec->tenant = mem_string(f->tenant);
    spec->model_name = mem_string(f->model_name);
    spec->ttft_deadline_ms = f->ttft_deadline_ms;
    enum status status = stop_from_flags(spec);
    if (status == STATUS_OK) status = logit_bias_from_flags(&spec->sampling.logit_bias);
    if (status == STATUS_OK) status = grammar_from_flags(&spec->sampling.grammar);
    return status == STATUS_OK ? spec_check(spec) : status;
}

// --- JSON rows

// Returns the string, or NULL unless the value is a string without NUL characters, which would truncate it.
static const char *plain_string(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static enum status string_from_json(const char *key, const json_t *value, char **text_p)
{
    if (!plain_string(value)) return json_refuse_type(key, "a string without NUL");
    free(*text_p);
    *text_p = mem_string(plain_string(value));
    return STATUS_OK;
}

static void prompt_clear(struct request_spec *spec)
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

static enum status prompt_from_json(const char *key, const json_t *value, struct request_spec *spec)
{
    prompt_clear(spec);
    if (strcmp(key, "prompt") == 0) {
        if (!json_is_string(value)) return json_refuse_type(key, "a string");
        spec->text_bytes = json_string_length(value);
        spec->text = mem_copy(json_string_value(value), spec->text_bytes + 1);
        return STATUS_OK;
    }
    if (!json_is_array(value)) return json_refuse_type(key, "a list");
    size_t n = json_array_size(value);
    if (!n) return json_refuse_type(key, "a list that is not empty");
    if (strcmp(key, "token_ids") == 0) {
        spec->token_ids = mem_alloc_array(n + 1, sizeof *spec->token_ids);
        for (size_t i = 0; i < n; i++) {
            const json_t *id = json_array_get(value, i);
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT_MAX) {
                return json_refuse_type(key, "a list of token ids");
            }
            spec->token_ids[spec->n_token_ids++] = (int32_t)json_integer_value(id);
        }
        return STATUS_OK;
    }
    spec->messages = mem_alloc_array(n + 1, sizeof *spec->messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *turn = json_array_get(value, i);
        const char *role = plain_string(json_object_get(turn, "role"));
        const json_t *content = json_object_get(turn, "content");
        if (!role || !json_is_string(content))
            return json_refuse_type(key, "a list of {\"role\": ..., \"content\": ...}");
        size_t content_bytes = json_string_length(content);
        spec->messages[spec->n_messages++] = (struct request_message){
            mem_string(role), mem_copy(json_string_value(content), content_bytes + 1), content_bytes};
    }
    return STATUS_OK;
}

static void stop_clear(struct request_spec *spec)
{
    for (int i = 0; i < spec->n_stop; i++)
        free(spec->stop[i]);
    spec->n_stop = 0;
}

static enum status stop_from_json(const json_t *value, struct request_spec *spec)
{
    stop_clear(spec);
    if (plain_string(value)) return stop_add(spec, plain_string(value));
    if (!json_is_array(value)) return json_refuse_type("stop", "a string or a list of strings without NUL");
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!plain_string(item)) return json_refuse_type("stop", "a string or a list of strings without NUL");
        enum status status = stop_add(spec, plain_string(item));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status mode_from_json(const json_t *value, struct request_spec *spec)
{
    const char *name = json_string_value(value);
    if (!name || !prefill_mode_parse(name, &spec->prefill.mode))
        return json_refuse_type("prefill", "auto, on, off or required");
    spec->prefill_mode_given = true;
    return STATUS_OK;
}

static enum status drafts_from_json(const json_t *value, struct request_spec *spec)
{
    const char *name = json_string_value(value);
    if (!name || !draft_mode_parse(name, &spec->prefill.drafts)) return json_refuse_type("drafts", "auto or off");
    spec->draft_mode_given = true;
    return STATUS_OK;
}

static enum status id_from_json(const json_t *value, struct request_spec *spec)
{
    if (!json_is_integer(value)) return string_from_json("id", value, &spec->id);
    free(spec->id);
    spec->id = mem_format("%lld", (long long)json_integer_value(value));
    return STATUS_OK;
}

static enum status deadline_from_json(const json_t *value, struct request_spec *spec)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX)
        return json_refuse_type("ttft_deadline_ms", "a whole number from 0 to 4294967295");
    spec->ttft_deadline_ms = json_integer_value(value);
    return STATUS_OK;
}

static const struct generation_field *field_by_name(const struct generation_field *fields, const char *name)
{
    for (const struct generation_field *f = fields; f->name; f++) {
        if (strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

static enum status key_from_json(struct request_spec *spec, const char *key, const json_t *value, bool *known_p)
{
    *known_p = true;
    const struct generation_field *field = field_by_name(sampling_fields, key);
    if (field) {
        spec->sampling_given |= generation_field_bit(sampling_fields, key);
        return generation_field_from_json(field, value, &spec->sampling);
    }
    if ((field = field_by_name(prefill_fields, key))) {
        spec->prefill_given |= generation_field_bit(prefill_fields, key);
        return generation_field_from_json(field, value, &spec->prefill);
    }
    if (strcmp(key, "id") == 0) return id_from_json(value, spec);
    if (strcmp(key, "prompt") == 0 || strcmp(key, "token_ids") == 0 || strcmp(key, "messages") == 0)
        return prompt_from_json(key, value, spec);
    if (strcmp(key, "stop") == 0) return stop_from_json(value, spec);
    if (strcmp(key, "stop_token_ids") == 0) return sampling_stop_ids_from_json(value, &spec->sampling);
    if (strcmp(key, "logit_bias") == 0) return sampling_logit_bias_from_json(value, &spec->sampling);
    if (strncmp(key, "guided_", strlen("guided_")) == 0 || strcmp(key, "response_format") == 0 ||
        strcmp(key, "structured_outputs") == 0)
        return STATUS_OK; // grammar_from_json() reads these fields
    if (strcmp(key, "prefill") == 0) return mode_from_json(value, spec);
    if (strcmp(key, "drafts") == 0) return drafts_from_json(value, spec);
    if (strcmp(key, "return_kept") == 0) return json_read_bool(key, value, &spec->return_kept);
    if (strcmp(key, "explain") == 0) return json_read_bool(key, value, &spec->explain);
    if (strcmp(key, "priority") == 0) return json_read_int(key, value, &spec->priority);
    if (strcmp(key, "tenant") == 0) return string_from_json(key, value, &spec->tenant);
    if (strcmp(key, "model") == 0) return string_from_json(key, value, &spec->model_name);
    if (strcmp(key, "ttft_deadline_ms") == 0) return deadline_from_json(value, spec);
    if (strcmp(key, "task") == 0 || strcmp(key, "answer") == 0)
        return STATUS_OK; // fields of rows for `forepack calibrate`
    *known_p = false;
    return STATUS_OK;
}

enum status request_spec_from_json(struct request_spec *spec, json_t *row, const char **unknown_p)
{
    if (!json_is_object(row)) return status_fail(STATUS_INVALID, "a row must be a JSON object");
    const char *key;
    json_t *value;
    json_object_foreach(row, key, value)
    {
        bool known;
        enum status status = key_from_json(spec, key, value, &known);
        if (status != STATUS_OK) return status;
        if (!known && unknown_p && !*unknown_p) *unknown_p = key;
    }
    int prompts =
        !!json_object_get(row, "prompt") + !!json_object_get(row, "token_ids") + !!json_object_get(row, "messages");
    if (prompts != 1) return status_fail(STATUS_INVALID, "a row needs exactly one of prompt, token_ids, messages");
    struct grammar_spec grammar;
    TRY(grammar_from_json(row, &grammar));
    if (grammar.kind != GRAMMAR_NONE) { // otherwise the grammar of the flags applies
        grammar_spec_free(&spec->sampling.grammar);
        spec->sampling.grammar = grammar;
    }
    return spec_check(spec);
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
        to->messages[i].content = mem_copy(from->messages[i].content, from->messages[i].content_bytes + 1);
        to->messages[i].content_bytes = from->messages[i].content_bytes;
    }
    to->sampling.logit_bias = logit_bias_copy(&from->sampling.logit_bias);
    to->sampling.grammar = grammar_spec_copy(&from->sampling.grammar);
    if (from->stop) to->stop = mem_alloc_array((size_t)from->n_stop + 1, sizeof *to->stop);
    for (int i = 0; i < from->n_stop; i++)
        to->stop[i] = mem_string(from->stop[i]);
}

void request_spec_free(struct request_spec *spec)
{
    prompt_clear(spec);
    free(spec->id);
    free(spec->model_name);
    free(spec->tenant);
    free(spec->resume_ids);
    stop_clear(spec);
    free(spec->stop);
    logit_bias_free(&spec->sampling.logit_bias);
    grammar_spec_free(&spec->sampling.grammar);
    *spec = (struct request_spec){0};
}

// --- messages

Forepack__V1__PrefillOptions *request_prefill_message(const struct request_spec *spec)
{
    static const Forepack__V1__PrefillMode modes[] = {
        [PREFILL_AUTO] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO,
        [PREFILL_ON] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON,
        [PREFILL_OFF] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF,
        [PREFILL_REQUIRED] = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED,
    };
    Forepack__V1__PrefillOptions *m = mem_alloc(sizeof *m);
    forepack__v1__prefill_options__init(m);
    prefill_to_message(&spec->prefill, spec->prefill_given, &m->base);
    if (spec->prefill_mode_given) m->mode = modes[spec->prefill.mode];
    if (spec->draft_mode_given)
        m->drafts = spec->prefill.drafts == DRAFTS_OFF ? FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_OFF
                                                       : FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_AUTO;
    m->return_kept = spec->return_kept;
    return m;
}

// Returns the turns and the list of pointers to them in one allocation.
static Forepack__V1__Message **turn_messages(const struct request_spec *spec)
{
    size_t n = (size_t)spec->n_messages;
    Forepack__V1__Message **list = mem_alloc(n * (sizeof *list + sizeof **list) + 1);
    Forepack__V1__Message *turns = (Forepack__V1__Message *)(list + n);
    for (size_t i = 0; i < n; i++) {
        const struct request_message *turn = &spec->messages[i];
        forepack__v1__message__init(&turns[i]);
        turns[i].role = turn->role;
        turns[i].content = (ProtobufCBinaryData){turn->content_bytes, (uint8_t *)turn->content};
        list[i] = &turns[i];
    }
    return list;
}

static ProtobufCBinaryData *stop_messages(const struct request_spec *spec)
{
    ProtobufCBinaryData *stops = mem_alloc_array((size_t)spec->n_stop + 1, sizeof *stops);
    for (int i = 0; i < spec->n_stop; i++)
        stops[i] = (ProtobufCBinaryData){strlen(spec->stop[i]), (uint8_t *)spec->stop[i]};
    return stops;
}

struct rpc_bytes request_spec_pack(const struct request_spec *spec)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling_to_message(&spec->sampling, spec->sampling_given, &sampling.base);
    sampling.stop = stop_messages(spec);
    sampling.n_stop = (size_t)spec->n_stop;
    sampling.logit_bias = logit_bias_entries(&spec->sampling.logit_bias);
    sampling.n_logit_bias = (size_t)spec->sampling.logit_bias.n;
    grammar_to_message(&spec->sampling.grammar, &sampling);

    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    request.sampling = &sampling;
    request.prefill = request_prefill_message(spec);
    if (spec->id) request.request_id = spec->id;
    if (spec->model_name) request.model = spec->model_name;
    if (spec->tenant) request.tenant = spec->tenant;
    request.priority = spec->priority;
    request.ttft_deadline_ms = (uint32_t)spec->ttft_deadline_ms;
    request.explain = spec->explain;
    request.text = (ProtobufCBinaryData){spec->text_bytes, (uint8_t *)spec->text};
    request.token_ids = (uint32_t *)spec->token_ids;
    request.n_token_ids = (size_t)spec->n_token_ids;
    Forepack__V1__Resume resume = FOREPACK__V1__RESUME__INIT;
    resume.token_ids = spec->resume_ids;
    resume.n_token_ids = spec->n_resume_ids;
    resume.mark = spec->resume_mark;
    if (spec->resumes) request.resume = &resume;
    request.messages = turn_messages(spec);
    request.n_messages = (size_t)spec->n_messages;

    struct rpc_bytes bytes = {.size = forepack__v1__generate_request__get_packed_size(&request)};
    bytes.data = mem_alloc(bytes.size);
    forepack__v1__generate_request__pack(&request, bytes.data);
    free(sampling.stop);
    free(sampling.logit_bias);
    free(request.messages);
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
        return status_fail(STATUS_INVALID, "unexpected argument '%s': give the prompt with --prompt", rest[0]);
    }
    if (!!prompt + !!prompt_file + from_stdin != 1) {
        return status_fail(STATUS_INVALID, "give the prompt with exactly one of --prompt TEXT, --prompt-file FILE, -");
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
