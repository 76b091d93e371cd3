// SPDX-License-Identifier: Apache-2.0
// Sampling and prefill fields on their way from a flag or a JSON row through both protocols: every field of
// lib/text/generation_fields.h arrives everywhere. Values outside the range of a field are refused with its name.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/request.h"
#include "lib/base/mem.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "tests/suite.h"

static const struct option options[] = {REQUEST_OPTION_ROWS, {0}};

// A valid value of each field, other than its default.
static const struct field_case {
    const char *name, *flag;
    double value;
} cases[] = {
    {"max_tokens", "--max-tokens", 77},
    {"min_tokens", "--min-tokens", 5},
    {"temperature", "--temperature", 0.75},
    {"top_k", "--top-k", 40},
    {"top_p", "--top-p", 0.9},
    {"min_p", "--min-p", 0.05},
    {"seed", "--seed", 123456789},
    {"repetition_penalty", "--repetition-penalty", 1.25},
    {"presence_penalty", "--presence-penalty", -1.5},
    {"frequency_penalty", "--frequency-penalty", 0.5},
    {"ignore_eos", "--ignore-eos", 1},
    {"logprobs", "--logprobs", 0},
    {"prompt_logprobs", "--prompt-logprobs", 5},
    {"keep_rate", "--keep-rate", 0.4},
    {"quality", "--quality", 0.95},
    {"look_ahead", "--look-ahead", 4},
    {"chunk_tokens", "--chunk-tokens", 16},
    {"pool_window", "--pool-window", 7},
    {"paper_exact", "--paper-exact", 1},
    {"conversation", "--conversation", 0},
    {"shared_tokens", "--shared-tokens", 60},
};
enum { N_CASES = sizeof cases / sizeof *cases };

// The fields of a request that are in the two tables.
struct fields {
    struct sampling sampling;
    struct prefill prefill;
};

static struct fields default_fields(void)
{
    struct fields f;
    sampling_defaults(&f.sampling);
    prefill_defaults(&f.prefill);
    return f;
}

static const struct generation_field *table_find(const struct generation_field *table, const char *name)
{
    for (const struct generation_field *f = table; f->name; f++) {
        if (strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

static const struct generation_field *field_find(const char *name)
{
    const struct generation_field *field = table_find(sampling_fields, name);
    if (!field) field = table_find(prefill_fields, name);
    ck_assert_msg(field, "no field %s", name);
    return field;
}

static double table_value(const struct generation_field *f, const void *object)
{
    const char *at = (const char *)object + f->offset;
    switch (f->type) {
    case GENERATION_FIELD_REAL:
    case GENERATION_FIELD_OPTIONAL_REAL: return *(const double *)at;
    case GENERATION_FIELD_UINT64: return (double)*(const uint64_t *)at;
    case GENERATION_FIELD_BOOL: return *(const bool *)at;
    default: return *(const int *)at;
    }
}

// Checks that all fields have their defaults, except the field of the case.
static void check_fields(const struct fields *fields, const struct field_case *expected, const char *where)
{
    for (int prefill = 0; prefill < 2; prefill++) {
        const void *object = prefill ? (const void *)&fields->prefill : &fields->sampling;
        for (const struct generation_field *f = prefill ? prefill_fields : sampling_fields; f->name; f++) {
            double want = strcmp(f->name, expected->name) == 0 ? expected->value : f->default_value;
            ck_assert_msg(table_value(f, object) == want, "%s: %s is %g, expected %g", where, f->name,
                          table_value(f, object), want);
        }
    }
}

static ProtobufCMessage *repack(const ProtobufCMessage *m)
{
    uint8_t *bytes = mem_alloc(protobuf_c_message_get_packed_size(m) + 1);
    size_t size = protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *unpacked = protobuf_c_message_unpack(m->descriptor, NULL, size, bytes);
    ck_assert_ptr_nonnull(unpacked);
    free(bytes);
    return unpacked;
}

static struct fields through_public(const struct request_spec *spec)
{
    struct rpc_bytes bytes = request_spec_pack(spec);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    ck_assert_ptr_nonnull(m);
    struct fields fields = default_fields();
    ck_assert_int_eq(sampling_from_message(&m->sampling->base, &fields.sampling), STATUS_OK);
    ck_assert_int_eq(prefill_from_message(&m->prefill->base, &fields.prefill), STATUS_OK);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
    return fields;
}

static struct fields through_cluster(const struct fields *from)
{
    struct fields to;
    memset(&to, 0, sizeof to); // the cluster protocol sends every field, but this one only if it is given
    to.sampling.prompt_logprobs = -1;
    to.prefill.conversation = from->prefill.conversation; // read by the router alone
    to.prefill.shared_tokens = from->prefill.shared_tokens;
    Forepack__Cluster__V1__Sampling sampling = FOREPACK__CLUSTER__V1__SAMPLING__INIT;
    sampling_to_message(&from->sampling, GENERATION_ALL_GIVEN, &sampling.base);
    ProtobufCMessage *m = repack(&sampling.base);
    ck_assert_int_eq(sampling_from_message(m, &to.sampling), STATUS_OK);
    if (to.sampling.no_output) to.sampling.max_tokens = 0; // the router always sends max_tokens
    protobuf_c_message_free_unpacked(m, NULL);
    Forepack__Cluster__V1__ScoreItem item = FOREPACK__CLUSTER__V1__SCORE_ITEM__INIT;
    prefill_to_message(&from->prefill, GENERATION_ALL_GIVEN, &item.base);
    m = repack(&item.base);
    ck_assert_int_eq(prefill_from_message(m, &to.prefill), STATUS_OK);
    protobuf_c_message_free_unpacked(m, NULL);
    return to;
}

static enum status parse_flag(const char *flag, const char *text, struct request_spec *spec)
{
    options_free(options);
    char *argument = mem_format("%s=%s", flag, text);
    enum status status = options_parse(options, 2, (char *[]){"test", argument}, NULL, NULL);
    if (status == STATUS_OK) status = request_spec_from_flags(options, spec);
    free(argument);
    return status;
}

static enum status parse_row(const char *name, json_t *value, struct request_spec *spec)
{
    *spec = (struct request_spec){0};
    sampling_defaults(&spec->sampling);
    prefill_defaults(&spec->prefill);
    json_t *row = json_pack("{s:s,s:o}", "prompt", "x", name, value);
    const char *unknown = NULL;
    enum status status = request_spec_from_json(spec, row, &unknown);
    ck_assert_msg(!unknown, "%s is unknown", name);
    json_decref(row);
    return status;
}

static json_t *json_value(const struct generation_field *f, double value)
{
    if (f->type == GENERATION_FIELD_BOOL) return json_boolean(value != 0);
    bool real = f->type == GENERATION_FIELD_REAL || f->type == GENERATION_FIELD_OPTIONAL_REAL;
    return real ? json_real(value) : json_integer((json_int_t)value);
}

START_TEST(every_field_has_a_case)
{
    int n = 0;
    for (int prefill = 0; prefill < 2; prefill++) {
        for (const struct generation_field *f = prefill ? prefill_fields : sampling_fields; f->name; f++) {
            ck_assert_msg(n < N_CASES, "no case for %s", f->name);
            ck_assert_str_eq(cases[n].name, f->name);
            ck_assert_msg(cases[n].value != f->default_value, "%s: the case is the default", f->name);
            n++;
        }
    }
    ck_assert_int_eq(n, N_CASES);
}
END_TEST

START_TEST(a_flag_arrives_through_both_protocols)
{
    const struct field_case *c = &cases[_i];
    struct request_spec spec;
    char *text = field_find(c->name)->type == GENERATION_FIELD_BOOL ? mem_string(c->value != 0 ? "true" : "false")
                                                                    : mem_format("%.10g", c->value);
    ck_assert_msg(parse_flag(c->flag, text, &spec) == STATUS_OK, "%s", status_message());
    check_fields(&(struct fields){spec.sampling, spec.prefill}, c, "flag");
    struct fields fields = through_public(&spec);
    check_fields(&fields, c, "public protocol");
    fields = through_cluster(&fields);
    check_fields(&fields, c, "cluster protocol");
    request_spec_free(&spec);
    options_free(options);
    free(text);
}
END_TEST

START_TEST(a_key_of_a_row_arrives)
{
    const struct field_case *c = &cases[_i];
    const struct generation_field *f = field_find(c->name);
    struct request_spec spec;
    ck_assert_msg(parse_row(c->name, json_value(f, c->value), &spec) == STATUS_OK, "%s", status_message());
    check_fields(&(struct fields){spec.sampling, spec.prefill}, c, "row");
    struct fields fields = through_public(&spec);
    check_fields(&fields, c, "public protocol");
    request_spec_free(&spec);
    ck_assert_int_eq(parse_row(c->name, json_string("high"), &spec), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), c->name), "%s", status_message());
    request_spec_free(&spec);
}
END_TEST

static void check_refused(const struct field_case *c, double value)
{
    const struct generation_field *f = field_find(c->name);
    struct request_spec spec;
    ck_assert_msg(parse_row(c->name, json_value(f, value), &spec) == STATUS_INVALID, "row: %s %g", c->name, value);
    ck_assert_msg(strstr(status_message(), c->name) != NULL, "%s", status_message());
    ck_assert_msg(strstr(status_message(), "must be") != NULL, "%s", status_message());
    request_spec_free(&spec);

    char *text = mem_format("%.10g", value);
    ck_assert_msg(parse_flag(c->flag, text, &spec) == STATUS_INVALID, "flag: %s %g", c->name, value);
    ck_assert_msg(strstr(status_message(), c->name) || strstr(status_message(), c->flag), "%s", status_message());
    request_spec_free(&spec);
    spec = (struct request_spec){0};
    options_free(options);
    free(text);
}

START_TEST(values_outside_the_range_are_refused_by_name)
{
    const struct field_case *c = &cases[_i];
    const struct generation_field *f = field_find(c->name);
    if (f->type == GENERATION_FIELD_BOOL || f->type == GENERATION_FIELD_UINT64) return; // every value is valid
    bool real = f->type == GENERATION_FIELD_REAL || f->type == GENERATION_FIELD_OPTIONAL_REAL;
    double step = real ? 0.01 : 1;
    bool none = f->type == GENERATION_FIELD_OPTIONAL && f->default_value < 0; // in a row -1 is "none"
    check_refused(c, f->over_min ? f->min : f->min - (none ? 2 : step));
    check_refused(c, -1000);
    if (f->max < INT_MAX) check_refused(c, f->max + step);
    ck_assert_int_eq(generation_field_check(f, f->max), STATUS_OK);
    ck_assert_int_eq(generation_field_check(f, f->over_min ? f->min + step : f->min), STATUS_OK);
    ck_assert_int_eq(generation_field_check(f, NAN), STATUS_INVALID);
    struct fields fields = default_fields();
    if (!real) return;
    bool prefill = table_find(prefill_fields, c->name);
    *(double *)((char *)(prefill ? (void *)&fields.prefill : &fields.sampling) + f->offset) = NAN;
    ck_assert_int_eq(prefill ? prefill_check(&fields.prefill) : sampling_check(&fields.sampling, 100), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), c->name), "%s", status_message());
}
END_TEST

// Checks that each member of a message is a field of the table, is mapped by hand, or is not sent.
static void check_members(const ProtobufCMessageDescriptor *message, const struct generation_field *table,
                          const char *by_hand, const char *not_sent)
{
    for (unsigned i = 0; i < message->n_fields; i++) {
        const char *name = message->fields[i].name;
        char *word = mem_format(" %s ", name);
        bool hand = strstr(by_hand, word);
        free(word);
        ck_assert_msg(hand != !!table_find(table, name), "%s: %s is not mapped, or twice", message->name, name);
    }
    for (const struct generation_field *f = table; f->name; f++)
        ck_assert_msg(strstr(not_sent, f->name) || protobuf_c_message_descriptor_get_field_by_name(message, f->name),
                      "%s has no %s", message->name, f->name);
}

START_TEST(every_member_of_the_messages_is_mapped)
{
    check_members(&forepack__v1__sampling_options__descriptor, sampling_fields,
                  " stop stop_token_ids logit_bias guided_json guided_regex guided_grammar guided_choice ", "");
    check_members(&forepack__cluster__v1__sampling__descriptor, sampling_fields,
                  " stop_token_ids logit_bias_ids logit_bias grammar_kind grammar ", "");
    check_members(&forepack__v1__prefill_options__descriptor, prefill_fields,
                  " mode return_kept pinned drafts chunk_auto ", "");
    check_members(&forepack__cluster__v1__score_item__descriptor, prefill_fields,
                  " request token_ids pinned tail_tokens want_importance salt trace hold budget_tokens min_keep_rate ",
                  "conversation shared_tokens");
}
END_TEST

// Auto is the default. What is sent shows whether a request says auto or nothing.
START_TEST(auto_chunks_arrive_as_a_word)
{
    struct request_spec spec;
    for (int row = 0; row < 2; row++) {
        enum status status =
            row ? parse_row("chunk_tokens", json_string("auto"), &spec) : parse_flag("--chunk-tokens", "auto", &spec);
        ck_assert_msg(status == STATUS_OK, "%s", status_message());
        Forepack__V1__PrefillOptions *m = request_prefill_message(&spec);
        ck_assert_int_eq(m->chunk_tokens_given_case, FOREPACK__V1__PREFILL_OPTIONS__CHUNK_TOKENS_GIVEN_CHUNK_AUTO);
        ck_assert(m->chunk_auto);
        struct fields fields = default_fields();
        fields.prefill.chunk_tokens = 7;
        ck_assert_int_eq(prefill_from_message(&m->base, &fields.prefill), STATUS_OK);
        ck_assert_int_eq(fields.prefill.chunk_tokens, CHUNK_TOKENS_AUTO);
        fields = through_cluster(&fields);
        ck_assert_int_eq(fields.prefill.chunk_tokens, CHUNK_TOKENS_AUTO);
        free(m);
        request_spec_free(&spec);
    }
    ck_assert_int_eq(parse_flag("--chunk-tokens", "many", &spec), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "--chunk-tokens 'many': must be auto or a whole number from 0 to 4096 tokens");
}
END_TEST

START_TEST(what_is_not_given_is_not_sent)
{
    struct request_spec spec;
    ck_assert_int_eq(parse_flag("--temperature", "1", &spec), STATUS_OK);
    struct rpc_bytes bytes = request_spec_pack(&spec);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->sampling->max_tokens_given_case, 0);
    ck_assert_int_eq(m->sampling->seed_given_case, 0);
    ck_assert_int_eq(m->sampling->logprobs_given_case, 0);
    ck_assert_int_eq(m->prefill->paper_exact_given_case, 0);
    ck_assert_int_eq(m->prefill->chunk_tokens_given_case, 0);
    ck_assert_int_eq(m->sampling->top_p_given_case, 0);
    ck_assert_int_eq(m->prefill->keep_rate_given_case, 0);
    ck_assert_int_eq(m->prefill->mode, FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_UNSPECIFIED);
    ck_assert_double_eq(m->sampling->temperature, 1);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
    request_spec_free(&spec);
    options_free(options);
}
END_TEST

START_TEST(zero_tokens_arrive_through_both_protocols_as_no_output)
{
    Forepack__V1__SamplingOptions m = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    Forepack__Cluster__V1__Sampling cluster = FOREPACK__CLUSTER__V1__SAMPLING__INIT;
    struct sampling s;
    sampling_defaults(&s);
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_OK);
    ck_assert(!s.no_output);
    m.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_OK);
    ck_assert(s.no_output);
    ck_assert_int_eq(s.max_tokens, 1);
    ck_assert_int_eq(sampling_output_max(&s), 0);
    ck_assert_int_eq(sampling_check(&s, 100), STATUS_OK);
    sampling_to_message(&s, GENERATION_ALL_GIVEN, &cluster.base);
    ck_assert_uint_eq(cluster.max_tokens, 0);
    s.no_output = false;
    ck_assert_int_eq(sampling_from_message(&cluster.base, &s), STATUS_OK);
    ck_assert(s.no_output);
    s.min_tokens = 1;
    ck_assert_int_eq(sampling_check(&s, 100), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "min_tokens 1: must be at most max_tokens (0)");
}
END_TEST

START_TEST(numbers_of_a_client_outside_the_range_are_refused)
{
    Forepack__V1__SamplingOptions m = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    struct sampling s;
    sampling_defaults(&s);
    m.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    m.max_tokens = UINT32_MAX;
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "max_tokens 4294967295: must be from 1 to 2147483647");
    m.max_tokens = 5;
    m.logprobs_given_case = FOREPACK__V1__SAMPLING_OPTIONS__LOGPROBS_GIVEN_LOGPROBS;
    m.logprobs = LOGPROBS_MAX + 1;
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "logprobs 21: must be from 0 to 20");
    m.logprobs = 0;
    m.top_k = UINT32_MAX;
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_OK);
    ck_assert_int_eq(s.top_k, INT_MAX);
    m.min_tokens = 6;
    ck_assert_int_eq(sampling_from_message(&m.base, &s), STATUS_OK);
    ck_assert_int_eq(sampling_check(&s, 100), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "min_tokens 6: must be at most max_tokens (5)");
}
END_TEST

START_TEST(fields_outside_the_tables_arrive)
{
    struct request_spec spec = {0};
    sampling_defaults(&spec.sampling);
    prefill_defaults(&spec.prefill);
    json_t *row =
        json_pack("{s:i,s:[{s:s,s:s}],s:[s,s],s:[i,i],s:s,s:s,s:b,s:i,s:s,s:s,s:i,s:i,s:s,s:s,s:i}", "id", 7,
                  "messages", "role", "user", "content", "Hello", "stop", "a", "b", "stop_token_ids", 3, 99, "prefill",
                  "off", "drafts", "off", "return_kept", 1, "priority", -4, "tenant", "t", "model", "m",
                  "ttft_deadline_ms", 250, "logprobs", -1, "task", "needle", "answer", "4821", "colour", 3);
    const char *unknown = NULL;
    ck_assert_msg(request_spec_from_json(&spec, row, &unknown) == STATUS_OK, "%s", status_message());
    ck_assert_str_eq(unknown, "colour");
    struct rpc_bytes bytes = request_spec_pack(&spec);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    ck_assert_ptr_nonnull(m);
    ck_assert_str_eq(m->request_id, "7");
    ck_assert_str_eq(m->tenant, "t");
    ck_assert_str_eq(m->model, "m");
    ck_assert_int_eq(m->priority, -4);
    ck_assert_int_eq(m->ttft_deadline_ms, 250);
    ck_assert_int_eq(m->n_messages, 1);
    ck_assert_str_eq(m->messages[0]->role, "user");
    ck_assert_mem_eq(m->messages[0]->content.data, "Hello", 5);
    ck_assert_int_eq(m->sampling->n_stop, 2);
    ck_assert_mem_eq(m->sampling->stop[1].data, "b", 1);
    ck_assert_int_eq(m->sampling->logprobs_given_case, 0);
    ck_assert_int_eq(m->prefill->mode, FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF);
    ck_assert_int_eq(m->prefill->drafts, FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_OFF);
    ck_assert(m->prefill->return_kept);
    struct fields fields = default_fields();
    ck_assert_int_eq(sampling_from_message(&m->sampling->base, &fields.sampling), STATUS_OK);
    ck_assert_int_eq(fields.sampling.n_stop_ids, 2);
    ck_assert_int_eq(fields.sampling.stop_ids[1], 99);
    fields = through_cluster(&fields);
    ck_assert_int_eq(fields.sampling.n_stop_ids, 2);
    ck_assert_int_eq(fields.sampling.stop_ids[1], 99);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
    json_decref(row);
    request_spec_free(&spec);
}
END_TEST

static void check_bias_arrives(const struct request_spec *spec)
{
    struct rpc_bytes bytes = request_spec_pack(spec);
    Forepack__V1__GenerateRequest *m = forepack__v1__generate_request__unpack(NULL, bytes.size, bytes.data);
    ck_assert_ptr_nonnull(m);
    const uint32_t ids[] = {3, 12, 100};
    const float numbers[] = {-100, 2.5f, 100};
    ck_assert_uint_eq(m->sampling->n_logit_bias, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(m->sampling->logit_bias[i]->key, ids[i]);
        ck_assert(m->sampling->logit_bias[i]->value == numbers[i]);
    }
    forepack__v1__generate_request__free_unpacked(m, NULL);
    rpc_bytes_free(&bytes);
}

static void ck_bias_refused(enum status status, const char *sentence, struct request_spec *spec)
{
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), sentence), "%s", status_message());
    request_spec_free(spec);
    options_free(options);
}

START_TEST(max_tokens_is_reduced_to_what_the_context_holds)
{
    const struct model_config config = {.max_context = 64};
    const struct context_policy reduces = {.words = CONTEXT_WORDS_ANTHROPIC, .reduces = true};
    struct sampling s = {.max_tokens = 100};
    ck_assert_int_eq(sampling_resolve(&s, 63, &config, 16, "max_tokens", &reduces), STATUS_OK);
    ck_assert_int_eq(s.max_tokens, 1);
    s = (struct sampling){.max_tokens = 100, .min_tokens = 5};
    ck_assert_int_eq(sampling_resolve(&s, 60, &config, 16, "max_tokens", &reduces), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(sampling_resolve(&s, 64, &config, 16, "max_tokens", &reduces), STATUS_OUT_OF_RANGE);
    ck_assert_str_eq(status_message(), "prompt is too long: 64 tokens > 63 maximum");
}
END_TEST

START_TEST(a_context_that_ends_with_the_window_names_it)
{
    struct model_config config = {.max_context = 64, .sliding_window = 64};
    struct sampling s = {.max_tokens = 60};
    const struct context_policy refuses = {0};
    ck_assert_int_eq(sampling_resolve(&s, 4, &config, 16, "max_tokens", &refuses), STATUS_OK);
    ck_assert_int_eq(sampling_resolve(&s, 5, &config, 16, "max_tokens", &refuses), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(status_message(), "over the context of 64 (the sliding_window of the model's "
                                                   "config.json): lower max_tokens to 59 or shorten"));
    ck_assert_int_eq(sampling_resolve(&s, 64, &config, 16, "max_tokens", &refuses), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(
        strstr(status_message(), "length is 64 tokens (the sliding_window of the model's config.json). However"));
    config.max_context = 63;
    ck_assert_int_eq(sampling_resolve(&s, 64, &config, 16, "max_tokens", &refuses), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_null(strstr(status_message(), "sliding_window"));
}
END_TEST

START_TEST(a_logit_bias_flag_arrives)
{
    struct request_spec spec, copy;
    ck_assert_msg(parse_flag("--logit-bias", "100=100,3=-100,12=2.5", &spec) == STATUS_OK, "%s", status_message());
    spec.text = mem_string("x");
    spec.text_bytes = 1;
    request_spec_copy(&spec, &copy);
    request_spec_free(&spec);
    check_bias_arrives(&copy);
    request_spec_free(&copy);
    options_free(options);
    const char *const wrong[] = {"", "5", "5=", "=5", "5=1,", "5=1;6=1", "x=1", "99999999999999999999=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_bias_refused(parse_flag("--logit-bias", wrong[i], &spec), "must be ID=BIAS, such as", &spec);
    }
    ck_bias_refused(parse_flag("--logit-bias", "5=1,5=1", &spec), "token 5 is given twice", &spec);
}
END_TEST

static enum status parse_bias_row(const char *json, struct request_spec *spec)
{
    *spec = (struct request_spec){0};
    sampling_defaults(&spec->sampling);
    prefill_defaults(&spec->prefill);
    ck_assert_int_eq(logit_bias_add(&spec->sampling.logit_bias, 9, 1), STATUS_OK); // the default, which a row replaces
    json_t *row = json_pack("{s:s,s:o}", "prompt", "x", "logit_bias", json_loads(json, JSON_DECODE_ANY, NULL));
    enum status status = request_spec_from_json(spec, row, NULL);
    json_decref(row);
    return status;
}

START_TEST(a_logit_bias_in_a_row_arrives)
{
    struct request_spec spec;
    ck_assert_msg(parse_bias_row("{\"12\": 2.5, \"3\": -100, \"100\": 100}", &spec) == STATUS_OK, "%s",
                  status_message());
    check_bias_arrives(&spec);
    request_spec_free(&spec);
    const char *const wrong[] = {"[]", "5", "{\"\": 1}", "{\"a\": 1}", "{\"1\": \"2\"}", "{\"1\": null}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_bias_refused(parse_bias_row(wrong[i], &spec), "logit_bias: must be an object of numbers by token id", &spec);
    }
}
END_TEST

SUITE("request")
{
    TEST(every_field_has_a_case);
    LOOP(a_flag_arrives_through_both_protocols, 0, N_CASES);
    LOOP(a_key_of_a_row_arrives, 0, N_CASES);
    LOOP(values_outside_the_range_are_refused_by_name, 0, N_CASES);
    TEST(every_member_of_the_messages_is_mapped);
    TEST(what_is_not_given_is_not_sent);
    TEST(auto_chunks_arrive_as_a_word);
    TEST(zero_tokens_arrive_through_both_protocols_as_no_output);
    TEST(numbers_of_a_client_outside_the_range_are_refused);
    TEST(fields_outside_the_tables_arrive);
    TEST(max_tokens_is_reduced_to_what_the_context_holds);
    TEST(a_context_that_ends_with_the_window_names_it);
    TEST(a_logit_bias_flag_arrives);
    TEST(a_logit_bias_in_a_row_arrives);
}
