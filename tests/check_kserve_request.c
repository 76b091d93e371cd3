// SPDX-License-Identifier: Apache-2.0
// router/front/kserve_tensors and kserve_request: tensors are never read beyond their contents, whatever a client
// sends, and become the fields of a request.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/kserve/kserve_tensors.h"
#include "tests/suite.h"

typedef Inference__ModelInferRequest__InferInputTensor input;

enum { MOST = KSERVE_TENSORS_MAX + 1 };

// A request under construction.
static struct {
    Inference__ModelInferRequest m;
    input inputs[MOST], *input_list[MOST];
    Inference__InferTensorContents contents[MOST];
    ProtobufCBinaryData raw[MOST];
    Inference__ModelInferRequest__ParametersEntry parameters[8], *parameter_list[8];
    Inference__InferParameter values[8];
    Inference__ModelInferRequest__InferRequestedOutputTensor outputs[4], *output_list[4];
} r;

static void begin(void)
{
    memset(&r, 0, sizeof r);
    inference__model_infer_request__init(&r.m);
    r.m.inputs = r.input_list;
    r.m.raw_input_contents = r.raw;
    r.m.parameters = r.parameter_list;
    r.m.outputs = r.output_list;
}

static input *add(const char *name, const char *datatype, const int64_t *shape, size_t rank)
{
    size_t i = r.m.n_inputs++;
    inference__model_infer_request__infer_input_tensor__init(&r.inputs[i]);
    r.input_list[i] = &r.inputs[i];
    r.inputs[i].name = (char *)name;
    r.inputs[i].datatype = (char *)datatype;
    r.inputs[i].shape = (int64_t *)shape;
    r.inputs[i].n_shape = rank;
    return &r.inputs[i];
}

static const int64_t one[] = {1, 1};

static void add_raw(const char *name, const char *datatype, const int64_t *shape, size_t rank, const void *bytes,
                    size_t size)
{
    add(name, datatype, shape, rank);
    r.raw[r.m.n_raw_input_contents++] = (ProtobufCBinaryData){size, (uint8_t *)bytes};
}
#define RAW(name, datatype, n, literal) add_raw(name, datatype, (const int64_t[]){n}, 1, literal, sizeof(literal) - 1)

static Inference__InferTensorContents *add_typed(const char *name, const char *datatype, const int64_t *shape,
                                                 size_t rank)
{
    Inference__InferTensorContents *contents = &r.contents[r.m.n_inputs];
    inference__infer_tensor_contents__init(contents);
    add(name, datatype, shape, rank)->contents = contents;
    return contents;
}

static void add_text(const char *name, const char *text)
{
    static ProtobufCBinaryData texts[MOST];
    ProtobufCBinaryData *data = &texts[r.m.n_inputs];
    *data = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    Inference__InferTensorContents *contents = add_typed(name, "BYTES", one, 1);
    contents->bytes_contents = data;
    contents->n_bytes_contents = 1;
}

static Inference__InferParameter *add_parameter(const char *name, Inference__InferParameter__ParameterChoiceCase kind)
{
    size_t i = r.m.n_parameters++;
    inference__model_infer_request__parameters_entry__init(&r.parameters[i]);
    inference__infer_parameter__init(&r.values[i]);
    r.parameter_list[i] = &r.parameters[i];
    r.parameters[i].key = (char *)name;
    r.parameters[i].value = &r.values[i];
    r.values[i].parameter_choice_case = kind;
    return &r.values[i];
}
#define PARAMETER(name, KIND, member, value)                                                                           \
    add_parameter(name, INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_##KIND##_PARAM)->member = value

static void add_output(const char *name)
{
    size_t i = r.m.n_outputs++;
    inference__model_infer_request__infer_requested_output_tensor__init(&r.outputs[i]);
    r.outputs[i].name = (char *)name;
    r.output_list[i] = &r.outputs[i];
}

static struct kserve_tensor tensors[KSERVE_TENSORS_MAX];
static size_t n_tensors;

static void ck_tensors(void)
{
    ck_assert_msg(kserve_tensors_read(&r.m, tensors, &n_tensors) == STATUS_OK, "%s", status_message());
}

static void ck_tensors_refused(const char *sentence)
{
    ck_assert_int_ne(kserve_tensors_read(&r.m, tensors, &n_tensors), STATUS_OK);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "%s", status_message());
}

START_TEST(raw_elements_are_read_with_their_width_and_sign)
{
    static const char *const types[] = {"INT8", "INT16", "INT32", "INT64"};
    for (size_t k = 0; k < 4; k++) {
        int64_t values[] = {-2, 100};
        uint8_t bytes[16];
        size_t width = (size_t)1 << k;
        for (size_t i = 0; i < 2; i++)
            memcpy(bytes + i * width, &values[i], width);
        begin();
        add_raw("x", types[k], (const int64_t[]){1, 2}, 2, bytes, 2 * width);
        add_raw("u",
                k == 0   ? "UINT8"
                : k == 1 ? "UINT16"
                : k == 2 ? "UINT32"
                         : "UINT64",
                (const int64_t[]){2}, 1, bytes, 2 * width);
        ck_tensors();
        ck_assert_int_eq(kserve_tensor_integer(&tensors[0], 0), -2);
        ck_assert_int_eq(kserve_tensor_integer(&tensors[0], 1), 100);
        int64_t largest = k == 3 ? INT64_MAX : (INT64_C(1) << 8 * width) - 2;
        ck_assert_int_eq(kserve_tensor_integer(&tensors[1], 0), largest);
    }
    double wide = 0.1;
    float narrow = 0.5f;
    begin();
    add_raw("d", "FP64", one, 1, &wide, sizeof wide);
    add_raw("f", "FP32", one, 2, &narrow, sizeof narrow);
    RAW("b", "BOOL", 2, "\x01\x00");
    RAW("s", "BYTES", 3,
        "\x02\x00\x00\x00"
        "ab\x00\x00\x00\x00\x01\x00\x00\x00\x00");
    ck_tensors();
    ck_assert_double_eq(kserve_tensor_real(&tensors[0], 0), 0.1);
    ck_assert_double_eq(kserve_tensor_real(&tensors[1], 0), 0.5);
    ck_assert(kserve_tensor_bool(&tensors[2], 0));
    ck_assert(!kserve_tensor_bool(&tensors[2], 1));
    struct kserve_place place = {0};
    ProtobufCBinaryData text;
    static const size_t lengths[] = {2, 0, 1};
    for (size_t i = 0; i < 3; i++) {
        ck_assert(kserve_tensor_next(&tensors[3], &place, &text));
        ck_assert_uint_eq(text.len, lengths[i]);
    }
    ck_assert_int_eq(text.data[0], 0);
    ck_assert(!kserve_tensor_next(&tensors[3], &place, &text));
}
END_TEST

START_TEST(a_shape_that_differs_from_the_contents_is_refused)
{
    static const struct {
        int64_t shape[3];
        size_t rank;
        const char *sentence;
    } cases[] = {
        {{-1}, 1, "input 'x': the shape has the dimension -1"},
        {{3}, 1, "3 elements of INT32 have 4 bytes each, its contents have 8 bytes"},
        {{0}, 1, "0 elements of INT32"},
        {{INT64_C(1) << 62, 8, 0}, 3, "has too many elements"},
        {{INT64_C(1) << 62, 1, 1}, 3, "4611686018427387904 elements"},       // times 4 bytes: 0 in 64 bits
        {{(INT64_C(1) << 62) + 2, 1, 1}, 3, "4611686018427387906 elements"}, // times 4 bytes: 8
        {{INT64_MIN, 1}, 2, "must be 0 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        add_raw("x", "INT32", cases[i].shape, cases[i].rank, "abcdefgh", 8);
        ck_tensors_refused(cases[i].sentence);
    }
    begin();
    add_raw("x", "INT32", cases[0].shape, 0, "abcd", 4); // no dimension: one element
    ck_tensors();
    ck_assert_uint_eq(tensors[0].n, 1);
    begin();
    add_typed("x", "INT64", one, 1);
    ck_tensors_refused("input 'x': its shape has 1 elements, its contents of INT64 have 0");
    begin();
    int64_t numbers[] = {5, 6};
    Inference__InferTensorContents *contents = add_typed("x", "INT32", one, 1);
    contents->int64_contents = numbers; // the list of another datatype
    contents->n_int64_contents = 1;
    ck_tensors_refused("its contents of INT32 have 0");
}
END_TEST

START_TEST(texts_are_within_their_contents)
{
    static const struct {
        const char *bytes;
        size_t size;
        int64_t n;
        const char *sentence;
    } cases[] = {
        {"\x01\x00\x00", 3, 1, "3 bytes after element 0: the length of an element has 4"},
        {"\x02\x00\x00\x00y", 5, 1, "element 0 has a length of 2 bytes, but 1 bytes follow"},
        {"\xff\xff\xff\xffy", 5, 1, "element 0 has a length of 4294967295 bytes, but 1 bytes follow"},
        {"\x01\x00\x00\x00yz", 6, 1, "1 bytes after element 1"},
        {"\x00\x00\x00\x00\x00\x00\x00\x00", 8, 1, "its shape has 1 elements, its contents have 2"},
        {"\x00\x00\x00\x00", 4, 2, "its shape has 2 elements, its contents have 1"},
        {"", 0, 1, "its shape has 1 elements, its contents have 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *exact = mem_copy(cases[i].bytes, cases[i].size + 1); // so that the sanitizer detects reads past the end
        begin();
        add_raw("x", "BYTES", &cases[i].n, 1, exact, cases[i].size);
        ck_tensors_refused(cases[i].sentence);
        free(exact);
    }
}
END_TEST

START_TEST(inputs_are_well_formed)
{
    begin();
    RAW("x", "INT4", 1, "a");
    ck_tensors_refused("input 'x': datatype 'INT4'");
    begin();
    RAW("x", "INT8", 1, "a");
    RAW("x", "INT8", 1, "a");
    ck_tensors_refused("input 'x': given twice");
    begin();
    RAW("x", "INT8", 1, "a");
    add("y", "INT8", one, 1);
    ck_tensors_refused("raw_input_contents: 1 given for 2 inputs");
    begin();
    add("y", "INT8", one, 1);
    ck_tensors_refused("input 'y': has no contents");
    begin();
    add_text("x", "a");
    r.m.n_raw_input_contents = 1;
    ck_tensors_refused("has contents and raw_input_contents");
    begin();
    RAW("\xff", "INT8", 1, "a");
    ck_tensors_refused("the name of an input: must be UTF-8");
    begin();
    for (int i = 0; i < MOST; i++)
        RAW("x", "INT8", 1, "a");
    ck_tensors_refused("inputs: 65 given, at most 64 are allowed");
    begin();
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry entry, *list = &entry;
    inference__model_infer_request__infer_input_tensor__parameters_entry__init(&entry);
    entry.key = "shared_memory_region";
    add("x", "INT8", one, 1)->parameters = &list;
    r.inputs[0].n_parameters = 1;
    ck_tensors_refused("shared memory is not supported");
}
END_TEST

static struct kserve_request q;

static void ck_read(void)
{
    ck_assert_msg(kserve_request_read(&r.m, &q) == STATUS_OK, "%s", status_message());
}

static void ck_refused(enum status wanted, const char *sentence)
{
    enum status status = kserve_request_read(&r.m, &q);
    ck_assert_msg(status == wanted, "%s: %s", status_name(status), status_message());
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "%s", status_message());
    kserve_request_fini(&q);
}

START_TEST(parameters_come_from_the_map_the_json_and_tensors)
{
    begin();
    r.m.model_name = "demo";
    r.m.model_version = "1";
    PARAMETER("max_tokens", INT64, int64_param, 7);
    PARAMETER("min_p", DOUBLE, double_param, 0.5);
    PARAMETER("seed", UINT64, uint64_param, 11);
    PARAMETER("ignore_eos", BOOL, bool_param, true);
    PARAMETER("logit_bias", STRING, string_param, "{\"5\": -100}");
    PARAMETER("timeout", INT64, int64_param, 1500);
    PARAMETER("of_a_proxy", STRING, string_param, "ignored");
    PARAMETER("model", STRING, string_param, "another");
    add_text("text_input", "Hello");
    add_text("sampling_parameters", "{\"max_tokens\": \"9\", \"top_k\": \"3\", \"stop\": \"12\", \"priority\": 2}");
    int32_t five = 5;
    Inference__InferTensorContents *contents = add_typed("top_k", "INT32", one, 2);
    contents->int_contents = &five;
    contents->n_int_contents = 1;
    ck_read();
    const Forepack__V1__GenerateRequest *m = &q.fields.message;
    ck_assert_str_eq(m->model, "demo");
    ck_assert_mem_eq(m->text.data, "Hello", 5);
    ck_assert_uint_eq(m->sampling->max_tokens, 9);
    ck_assert_uint_eq(m->sampling->top_k, 5);
    ck_assert_double_eq(m->sampling->min_p, 0.5);
    ck_assert_double_eq(m->sampling->temperature, 1);
    ck_assert_uint_eq(m->sampling->seed, 11);
    ck_assert(m->sampling->ignore_eos);
    ck_assert_uint_eq(m->sampling->n_logit_bias, 1);
    ck_assert_uint_eq(m->sampling->n_stop, 1);
    ck_assert_mem_eq(m->sampling->stop[0].data, "12", 2);
    ck_assert_int_eq(m->priority, 2);
    ck_assert_uint_eq(m->ttft_deadline_ms, 2);
    ck_assert(q.echo);
    ck_assert(!q.stream);
    ck_assert(!q.empty_final);
    ck_assert_uint_eq(q.outputs, 1u << KSERVE_TEXT);
    kserve_request_fini(&q);
}
END_TEST

START_TEST(lists_and_names_of_tensorrt_llm_are_read)
{
    begin();
    uint8_t ids[] = {3, 0, 0, 0, 4, 0, 0, 0};
    add_raw("input_ids", "INT32", (const int64_t[]){1, 2}, 2, ids, sizeof ids);
    RAW("input_lengths", "INT32", 1, "\x02\x00\x00\x00");
    RAW("request_output_len", "INT32", 1, "\x06\x00\x00\x00");
    RAW("stop_words", "BYTES", 3,
        "\x01\x00\x00\x00.\x00\x00\x00\x00\x02\x00\x00\x00"
        "ab");
    RAW("bad_words", "BYTES", 1, "\x00\x00\x00\x00");
    RAW("end_id", "INT32", 1, "\x02\x00\x00\x00");
    RAW("pad_id", "INT32", 1, "\x02\x00\x00\x00");
    RAW("beam_width", "UINT32", 1, "\x01\x00\x00\x00");
    RAW("random_seed", "UINT64", 1, "\x05\x00\x00\x00\x00\x00\x00\x00");
    RAW("stream", "BOOL", 1, "\x01");
    ck_read();
    const Forepack__V1__GenerateRequest *m = &q.fields.message;
    ck_assert_uint_eq(m->n_token_ids, 2);
    ck_assert_uint_eq(m->token_ids[1], 4);
    ck_assert_uint_eq(m->sampling->max_tokens, 6);
    ck_assert_uint_eq(m->sampling->n_stop, 2);
    ck_assert_mem_eq(m->sampling->stop[1].data, "ab", 2);
    ck_assert_uint_eq(m->sampling->n_stop_token_ids, 1);
    ck_assert_uint_eq(m->sampling->seed, 5);
    ck_assert(q.stream);
    ck_assert(!q.echo);
    ck_assert_uint_eq(q.outputs, 1u << KSERVE_TEXT | 1u << KSERVE_IDS);
    kserve_request_fini(&q);
}
END_TEST

START_TEST(what_is_not_served_is_refused_by_name)
{
    static const struct {
        const char *name;
        int64_t value;
        enum status status;
        const char *sentence;
    } cases[] = {
        {"priority", 1, STATUS_UNSUPPORTED, "parameter 'priority': Triton's levels"},
        {"sequence_id", 1, STATUS_UNSUPPORTED, "parameter 'sequence_id': the model has no sequences"},
        {"triton_other", 1, STATUS_INVALID, "parameter 'triton_other': names with triton_ are reserved"},
        {"timeout", -1, STATUS_INVALID, "timeout: must be"},
        {"n", 2, STATUS_UNSUPPORTED, "n: not supported, except 1"},
        {"best_of", 2, STATUS_UNSUPPORTED, "best_of"},
        {"top_p", 2, STATUS_INVALID, "top_p"},
        {"stream", 1, STATUS_INVALID, "stream"},
        {"\xff", 1, STATUS_INVALID, "the name of a parameter: must be UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        add_text("text_input", "Hello");
        PARAMETER(cases[i].name, INT64, int64_param, cases[i].value);
        ck_refused(cases[i].status, cases[i].sentence);
    }
    begin();
    add_text("text_input", "Hello");
    PARAMETER("temperature", DOUBLE, double_param, (double)INFINITY);
    ck_refused(STATUS_INVALID, "parameter 'temperature': must be text in UTF-8, a finite number or a switch");
    begin();
    add_text("text_input", "Hello");
    PARAMETER("top_k", INT64, int64_param, 1);
    r.parameters[0].value = NULL; // a map entry without a value
    ck_refused(STATUS_INVALID, "parameter 'top_k'");
    begin();
    add_text("text_input", "Hello");
    add_text("image", "");
    ck_refused(STATUS_INVALID, "input 'image': the model has no input of this name");
    begin();
    add_text("text_input", "Hello");
    add_text("sampling_parameters", "[1]");
    ck_refused(STATUS_INVALID, "input 'sampling_parameters'");
    begin();
    add_text("text_input", "Hello");
    add_output("logits");
    ck_refused(STATUS_INVALID, "output 'logits': the model has no output of this name");
    begin();
    r.m.model_version = "2";
    ck_refused(STATUS_NOT_FOUND, "has no version '2'");
    begin();
    r.m.id = "\xff";
    ck_refused(STATUS_INVALID, "id: must be UTF-8");
}
END_TEST

START_TEST(a_request_has_one_prompt)
{
    begin();
    ck_refused(STATUS_INVALID, "give one of the inputs text_input and input_ids");
    begin();
    add_text("text_input", "");
    ck_refused(STATUS_INVALID, "the prompt is empty");
    begin();
    RAW("text_input", "BYTES", 2, "\x01\x00\x00\x00y\x01\x00\x00\x00y");
    ck_refused(STATUS_INVALID, "input 'text_input': has 2 elements: must have 1");
    begin();
    RAW("text_input", "INT8", 1, "a");
    ck_refused(STATUS_INVALID, "input 'text_input': datatype INT8: must be BYTES");
    begin();
    RAW("text_input", "BYTES", 1, "\x01\x00\x00\x00y");
    RAW("input_ids", "INT32", 1, "\x01\x00\x00\x00");
    ck_refused(STATUS_INVALID, "give only one of the inputs");
    begin();
    add_raw("input_ids", "INT8", (const int64_t[]){2, 1}, 2, "ab", 2);
    ck_refused(STATUS_INVALID, "input 'input_ids': its shape must be [tokens] or [1, tokens]");
    begin();
    RAW("input_ids", "INT32", 1, "\xff\xff\xff\xff");
    ck_refused(STATUS_INVALID, "input 'input_ids': -1 at index 0 is not a token id");
    begin();
    RAW("input_ids", "FP32", 1, "\x01\x00\x00\x00");
    ck_refused(STATUS_INVALID, "input 'input_ids': datatype FP32");
    begin();
    RAW("input_ids", "INT8", 2, "ab");
    RAW("input_lengths", "INT8", 1, "\x03");
    ck_refused(STATUS_INVALID, "input 'input_lengths': 3, but input_ids has 2 tokens");
    begin();
    RAW("input_ids", "INT8", 2, "ab");
    RAW("input_lengths", "FP32", 1, "\x03\x00\x00\x00");
    ck_refused(STATUS_INVALID, "input 'input_lengths': datatype FP32");
}
END_TEST

START_TEST(the_prompt_is_excluded_from_streams)
{
    begin();
    RAW("text_input", "BYTES", 1, "\x03\x00\x00\x00y\x00z"); // U+0000 is a character
    RAW("exclude_input_in_output", "BOOL", 1, "\x00");
    RAW("stream", "BOOL", 1, "\x01");
    ck_refused(STATUS_INVALID, "exclude_input_in_output: must be true with stream");
    r.raw[1].data = (uint8_t *)"\x01";
    PARAMETER("triton_enable_empty_final_response", BOOL, bool_param, true);
    add_output("finish_reason");
    add_output("cumulative_logprob");
    ck_read();
    ck_assert_uint_eq(q.fields.message.text.len, 3);
    ck_assert(q.stream);
    ck_assert(!q.echo);
    ck_assert(q.empty_final);
    ck_assert_uint_eq(q.outputs, 1u << KSERVE_FINISH_REASON | 1u << KSERVE_CUMULATIVE_LOGPROB);
    ck_assert_int_eq(q.fields.message.sampling->logprobs_given_case,
                     FOREPACK__V1__SAMPLING_OPTIONS__LOGPROBS_GIVEN_LOGPROBS);
    kserve_request_fini(&q);
}
END_TEST

START_TEST(json_in_strings_takes_bounded_memory)
{
    size_t n = (size_t)1 << 20;
    char *lists = mem_alloc(n + 1); // "[[],[],...": hundreds of megabytes once parsed
    for (size_t i = 0; i < n; i++)
        lists[i] = i == 0 ? '[' : "[],"[(i - 1) % 3];
    lists[n - 1] = ']';
    begin();
    add_text("text_input", "Hello");
    PARAMETER("pinned", STRING, string_param, lists);
    ck_refused(STATUS_INVALID, "pinned: must be a list");
    ck_assert_str_eq(status_message(), "pinned: must be a list"); // it was not parsed
    free(lists);
}
END_TEST

SUITE("kserve_request")
{
    TEST(raw_elements_are_read_with_their_width_and_sign);
    TEST(a_shape_that_differs_from_the_contents_is_refused);
    TEST(texts_are_within_their_contents);
    TEST(inputs_are_well_formed);
    TEST(parameters_come_from_the_map_the_json_and_tensors);
    TEST(lists_and_names_of_tensorrt_llm_are_read);
    TEST(what_is_not_served_is_refused_by_name);
    TEST(a_request_has_one_prompt);
    TEST(the_prompt_is_excluded_from_streams);
    TEST(json_in_strings_takes_bounded_memory);
}
