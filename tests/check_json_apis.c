// SPDX-License-Identifier: Apache-2.0
// Bodies of the Responses API and of the Messages API become bodies of /v1/chat/completions, and answers get the shape
// and the events of these APIs.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/json_anthropic.h"
#include "router/front/http/json_anthropic_answer.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_responses_answer.h"
#include "tests/suite.h"

typedef enum status translate_fn(const json_t *body, json_t **chat_p);

static enum status message_to_chat(const json_t *body, json_t **chat_p)
{
    return anthropic_to_chat(body, false, chat_p);
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(value != NULL, "%s: %s", error.text, text);
    return value;
}

static void check_equal(const json_t *value, const char *expected)
{
    json_t *other = parse(expected);
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    ck_assert_msg(json_equal(value, other), "got %s, expected %s", text, expected);
    free(text);
    json_decref(other);
}

static void check_chat(translate_fn *translate, const char *body, const char *expected)
{
    json_t *from = parse(body), *chat;
    ck_assert_msg(translate(from, &chat) == STATUS_OK, "%s: %s", body, status_message());
    json_decref(from); // the copy keeps what it needs
    check_equal(chat, expected);
    json_decref(chat);
}

struct refusal {
    const char *body, *sentence;
};

static void check_refusals(translate_fn *translate, const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_t *body = parse(cases[i].body), *chat = NULL;
        enum status status = translate(body, &chat);
        ck_assert_msg(status == STATUS_INVALID || status == STATUS_UNSUPPORTED, "%s: taken", cases[i].body);
        ck_assert_msg(strncmp(status_message(), cases[i].sentence, strlen(cases[i].sentence)) == 0, "%s: %s",
                      cases[i].body, status_message());
        ck_assert_ptr_null(chat);
        json_decref(body);
    }
}

// --- events

struct event {
    char name[64];
    json_t *data;
};

// Reads the next event of a stream, as a client does.
static bool event_next(const char **at_p, struct event *event)
{
    static const char begin[] = "event: ", middle[] = "\ndata: ";
    const char *at = *at_p, *name = at + strlen(begin), *data, *end;
    if (!*at) return false;
    ck_assert(strncmp(at, begin, strlen(begin)) == 0);
    ck_assert_ptr_nonnull(data = strstr(name, middle));
    ck_assert_ptr_nonnull(end = strstr(data, "\n\n"));
    snprintf(event->name, sizeof event->name, "%.*s", (int)(data - name), name);
    data += strlen(middle);
    char *text = strndup(data, (size_t)(end - data));
    event->data = parse(text);
    free(text);
    ck_assert_str_eq(json_string_value(json_object_get(event->data, "type")), event->name);
    *at_p = end + 2;
    return true;
}

static const json_t *get(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(key)) : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return value;
}

static void check_at(const json_t *value, const char *path, const char *expected)
{
    const json_t *found = get(value, path);
    ck_assert_msg(found != NULL, "no %s", path);
    check_equal(found, expected);
}

static const struct request_usage usage = {
    .prompt_tokens = 100, .kept_tokens = 40, .cached_tokens = 16, .completion_tokens = 7};

// --- Responses

START_TEST(a_response_is_asked_for_as_a_chat)
{
    check_chat(responses_to_chat, "{\"model\":\"m\",\"input\":\"Hi\",\"temperature\":0.5,\"stream\":true}",
               "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"temperature\":0.5,"
               "\"stream\":true}");
    check_chat(responses_to_chat,
               "{\"instructions\":\"Be brief\",\"input\":[{\"role\":\"developer\",\"content\":\"a\"},"
               "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"b\"}]},"
               "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"msg_1\",\"status\":\"completed\","
               "\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[]}]}],"
               "\"max_output_tokens\":5,\"keep_rate\":0.3,\"seed\":1,\"user\":\"u\"}",
               "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief\"},{\"role\":\"system\",\"content\":\"a\"},"
               "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]},"
               "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}],"
               "\"max_completion_tokens\":5,\"keep_rate\":0.3,\"seed\":1,\"user\":\"u\"}");
    check_chat(responses_to_chat, "{\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":2}");
    // Values that ask for nothing special are accepted.
    check_chat(responses_to_chat,
               "{\"input\":\"Hi\",\"store\":true,\"background\":false,\"tools\":[],\"tool_choice\":\"auto\","
               "\"previous_response_id\":null,\"truncation\":\"disabled\",\"text\":{\"format\":{\"type\":\"text\"}},"
               "\"reasoning\":null,\"include\":[],\"metadata\":{\"a\":\"b\"},\"parallel_tool_calls\":false,"
               "\"service_tier\":\"flex\",\"instructions\":\"\",\"max_tokens\":null,\"n\":1,\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false}}",
               "{\"max_tokens\":null,\"n\":1,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
               "\"response_format\":{\"type\":\"text\"},"
               "\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false}");
    check_chat(responses_to_chat,
               "{\"input\":\"Hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\",\"schema\":{}}}}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"response_format\":{\"type\":\"json_schema\","
               "\"json_schema\":{\"schema\":{}}}}");
}
END_TEST

START_TEST(a_response_with_tools_is_asked_for_as_a_chat)
{
    check_chat(
        responses_to_chat,
        "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"strict\":true,"
        "\"parameters\":{\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"description\":\"d\",\"strict\":true,\"parameters\":{\"type\":\"object\"}}}],"
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}");
    // The text and the calls of an answer are one turn; its reasoning is not shown again.
    check_chat(
        responses_to_chat,
        "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\",\"summary\":[]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"b\"},"
        "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"4\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":\"5\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c3\",\"name\":\"h\",\"arguments\":\"{}\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":"
        "["
        "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
        "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"4\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":[{\"type\":\"text\",\"text\":\"5\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
        "{\"id\":\"c3\",\"type\":\"function\",\"function\":{\"name\":\"h\",\"arguments\":\"{}\"}}]}]}");
}
END_TEST

START_TEST(a_response_that_needs_more_is_refused)
{
#define TEN  "0123456789"
#define LONG TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
    static const struct refusal cases[] = {
        {"{}", "input: must be a string or a list of items"},
        {"{\"input\":[]}", "input: must be"},
        {"{\"input\":5}", "input: must be"},
        {"{\"input\":[5]}", "input[0].role: must be"},
        {"{\"input\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "input[0].role: must be user, assistant"},
        {"{\"input\":[{\"role\":\"user\"}]}", "input[0].content: must be a string or a list of blocks"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[5]}]}", "input[0].content[0]: must be an object with a type"},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call_output\"}]}",
         "input[1].call_id: must be a string"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":5}]}",
         "input[0].output: must be a"},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\"}]}", "input[0]: must have call_id"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"c\"}]}", "input[0]: type item_reference is not supported"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
         "input[0].content[0]: type input_image is not supported"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":1}]}]}",
         "input[0].content[0].text: must be a string"},
        {"{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}",
         "previous_response_id: not supported: responses are not stored: send the whole conversation as input"},
        {"{\"input\":\"a\",\"conversation\":\"conv_1\"}", "conversation: not supported: responses are not stored"},
        {"{\"input\":\"a\",\"background\":true}", "background: not supported, except false"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0]: type web_search is not supported"},
        {"{\"input\":\"a\",\"tools\":[5]}", "tools[0]: must be an object with a type"},
        {"{\"input\":\"a\",\"tools\":5}", "tools: must be a list"},
        {"{\"input\":\"a\",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice: must be none, auto, required"},
        {"{\"input\":\"a\",\"truncation\":\"auto\"}", "truncation: not supported, except \"disabled\""},
        {"{\"input\":\"a\",\"reasoning\":{\"effort\":\"low\"}}", "reasoning: not supported"},
        {"{\"input\":\"a\",\"include\":[\"reasoning.encrypted_content\"]}", "include: not supported, except message"},
        {"{\"input\":\"a\",\"include\":[5]}", "include: not supported"},
        {"{\"input\":\"a\",\"top_logprobs\":3}", "top_logprobs: only with include"},
        {"{\"input\":\"a\",\"top_logprobs\":21,\"include\":[\"message.output_text.logprobs\"]}",
         "top_logprobs 21: must be"},
        {"{\"input\":\"a\",\"text\":{\"verbosity\":\"low\"}}", "text.verbosity: not supported"},
        {"{\"input\":\"a\",\"text\":\"x\"}", "text: must be an object"},
        {"{\"input\":\"a\",\"metadata\":{\"a\":1}}", "metadata: must be an object of at most 16 strings"},
        {"{\"input\":\"a\",\"metadata\":{\"a\":\"" LONG LONG "\"}}", "metadata: must be an object of at most 16"},
        {"{\"input\":\"a\",\"metadata\":{\"" LONG "\":\"a\"}}", "metadata: must be an object of at most 16"},
        {"{\"input\":\"a\",\"prompt_cache_key\":\"" LONG LONG "\"}", "prompt_cache_key: 520 bytes long"},
        {"{\"input\":\"a\",\"safety_identifier\":[]}", "safety_identifier: must be a string"},
        {"{\"input\":\"a\",\"parallel_tool_calls\":5}", "parallel_tool_calls: must be true or false"},
        {"{\"input\":\"a\",\"metadata\":[]}", "metadata: must be an object"},
        {"{\"input\":\"a\",\"instructions\":[]}", "instructions: must be a string"},
        {"{\"input\":\"a\",\"store\":\"yes\"}", "store: must be true or false"},
        {"{\"input\":\"a\",\"max_tokens\":5}", "max_tokens: not supported: give max_output_tokens"},
        {"{\"input\":\"a\",\"max_completion_tokens\":5}", "max_completion_tokens: not supported: give max_output"},
        {"{\"input\":\"a\",\"messages\":[]}", "messages: not supported: give input"},
        {"{\"input\":\"a\",\"logprobs\":true}", "logprobs: not supported, except false: give include"},
        {"{\"input\":\"a\",\"n\":2}", "n: not supported, except 1"},
        {"{\"input\":\"a\",\"best_of\":2}", "best_of: not supported, except 1"},
        {"{\"input\":\"a\",\"return_kept\":true}", "return_kept: not supported, except false"},
        {"{\"input\":\"a\",\"return_token_ids\":true}", "return_token_ids: not supported, except false"},
        {"{\"input\":\"a\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}",
         "continuous_usage_stats: not supported, except false"},
        {"{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens 0: must be from 1"},
        {"{\"input\":\"a\",\"max_output_tokens\":1.5}", "max_output_tokens: must be a whole number"},
    };
    check_refusals(responses_to_chat, cases, sizeof cases / sizeof *cases);
}
END_TEST

// Waiting requests keep the fields that their response repeats.
START_TEST(a_response_repeats_a_bounded_part_of_its_request)
{
    static const struct {
        const char *head, *sentence;
    } cases[] = {
        {"{\"input\":\"a\",\"user\":\"", "user: 300000 bytes long, at most 512 are allowed"},
        {"{\"input\":\"a\",\"tool_choice\":\"", "tool_choice: 300002 bytes of JSON, at most 262144 are allowed"},
        {"{\"input\":\"a\",\"text\":{\"other\":\"", "text: 300012 bytes of JSON, at most 262144 are allowed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *body, *chat;
        char *text = mem_format("%s%0300000d\"%s", cases[i].head, 0, i == 2 ? "}}" : "}");
        body = parse(text);
        ck_assert_int_eq(responses_to_chat(body, &chat), STATUS_INVALID);
        ck_assert_str_eq(status_message(), cases[i].sentence);
        json_decref(body);
        free(text);
    }
}
END_TEST

START_TEST(long_instructions_are_taken_but_not_repeated)
{
    for (int large = 0; large < 2; large++) {
        json_t *chat, *instructions;
        char *text = mem_format("{\"input\":\"a\",\"instructions\":\"%0*d\"}", large ? 300000 : 200000, 0);
        json_t *body = parse(text);
        ck_assert_int_eq(responses_to_chat(body, &chat), STATUS_OK);
        ck_assert(json_equal(get(chat, "messages.0.content"), json_object_get(body, "instructions")));
        char *echo = responses_echo(body), *repeated = mem_format("{\"id\":1%s}", echo);
        json_t *response = parse(repeated);
        instructions = json_object_get(response, "instructions");
        ck_assert(large ? json_is_null(instructions) : json_equal(instructions, json_object_get(body, "instructions")));
        json_decref(response);
        free(repeated);
        free(echo);
        json_decref(chat);
        json_decref(body);
        free(text);
    }
}
END_TEST

static struct responses_answer answer_start(void)
{
    json_t *body =
        parse("{\"input\":\"Hi\",\"metadata\":{\"a\":\"\\u00e9\"},\"temperature\":0.5,\"max_output_tokens\":9}");
    char *echo = responses_echo(body);
    json_decref(body);
    return (struct responses_answer){.id = "resp-12ab", .model = "demo", .echo = echo, .created_s = 1700000000};
}

static void answer_end(struct responses_answer *a)
{
    free((char *)a->echo);
    responses_answer_fini(a);
}

START_TEST(a_response_is_an_object_with_a_message)
{
    static const enum finish_reason reasons[] = {FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_CANCELLED,
                                                 FINISH_REASON_ERROR};
    static const char *const names[] = {"\"completed\"", "\"incomplete\"", "\"cancelled\"", "\"failed\""};
    for (int i = 0; i < 4; i++) {
        struct responses_answer a = answer_start();
        struct bytes out = {0};
        const struct bytes text = {"a\"\n", 3, 0};
        responses_set_items(&a, &text, &(struct bytes){0}, NULL);
        responses_add_object(&out, &a,
                             &(struct responses_end){reasons[i], &usage, "the node was lost", OUTPUT_CUT_NONE});
        bytes_add(&out, "", 1);
        json_t *response = parse(out.data);
        check_at(response, "id", "\"resp-12ab\"");
        check_at(response, "object", "\"response\"");
        check_at(response, "created_at", "1700000000");
        check_at(response, "status", names[i]);
        check_at(response, "store", "false");
        check_at(response, "metadata", "{\"a\":\"\\u00e9\"}");
        check_at(response, "temperature", "0.5");
        check_at(response, "top_p", "1.0");
        check_at(response, "max_output_tokens", "9");
        check_at(response, "output.0.id", "\"msg-12ab-0\"");
        check_at(response, "output.0.content.0",
                 "{\"type\":\"output_text\",\"text\":\"a\\\"\\n\",\"annotations\":[],\"logprobs\":[]}");
        check_at(response, "usage",
                 "{\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":16,\"cache_write_tokens\":0},"
                 "\"output_tokens\":7,"
                 "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":107}");
        check_at(response, "incomplete_details", i == 1 ? "{\"reason\":\"max_output_tokens\"}" : "null");
        check_at(response, "error", i == 3 ? "{\"code\":\"server_error\",\"message\":\"the node was lost\"}" : "null");
        json_decref(response);
        answer_end(&a);
        bytes_free(&out);
    }
}
END_TEST

START_TEST(a_streamed_response_has_openais_events_in_order)
{
    static const char *const names[] = {"response.created",           "response.in_progress",
                                        "response.output_item.added", "response.content_part.added",
                                        "response.output_text.delta", "response.output_text.delta",
                                        "response.output_text.done",  "response.content_part.done",
                                        "response.output_item.done",  "response.completed"};
    struct responses_answer a = answer_start();
    struct bytes out = {0};
    responses_add_begin(&out, &a);
    const char *const pieces[] = {"Hel", "", "lo"}, *const lists[] = {"{\"a\":1}", "", "{\"b\":2},{\"c\":3}"};
    for (int i = 0; i < 3; i++)
        responses_add_text(&out, &a, pieces[i], strlen(pieces[i]),
                           &(struct bytes){(char *)lists[i], strlen(lists[i]), 0});
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_STOP, &usage, NULL, OUTPUT_CUT_NONE});
    bytes_add(&out, "", 1);
    const char *at = out.data;
    struct event event;
    int n = 0;
    for (; event_next(&at, &event); n++) {
        ck_assert_int_lt(n, 10);
        ck_assert_str_eq(event.name, names[n]);
        ck_assert_int_eq(json_integer_value(get(event.data, "sequence_number")), n);
        if (n < 2) check_at(event.data, "response.status", "\"in_progress\"");
        if (n < 2) check_at(event.data, "response.output", "[]");
        if (n == 2) check_at(event.data, "item.content", "[]");
        if (n == 3) check_at(event.data, "part.text", "\"\"");
        if (n == 4) check_at(event.data, "delta", "\"Hel\"");
        if (n == 5) check_at(event.data, "delta", "\"lo\"");
        if (n == 5) check_at(event.data, "logprobs", "[{\"b\":2},{\"c\":3}]");
        if (n == 6) check_at(event.data, "logprobs", "[{\"a\":1},{\"b\":2},{\"c\":3}]");
        if (n == 7) check_at(event.data, "part.logprobs", "[{\"a\":1},{\"b\":2},{\"c\":3}]");
        if (n == 6) check_at(event.data, "text", "\"Hello\"");
        if (n == 7) check_at(event.data, "part.text", "\"Hello\"");
        if (n == 8) check_at(event.data, "item.content.0.text", "\"Hello\"");
        if (n == 9) check_at(event.data, "response.output.0.content.0.text", "\"Hello\"");
        if (n >= 3 && n <= 7) check_at(event.data, "item_id", "\"msg-12ab-0\"");
        json_decref(event.data);
    }
    ck_assert_int_eq(n, 10);
    answer_end(&a);
    bytes_free(&out);
}
END_TEST

// Repeating the log-probabilities four times would take hundreds of MiB. A client may leave only 16 MiB unread.
START_TEST(the_last_events_of_a_stream_leave_out_many_log_probabilities)
{
    enum { PIECES = 2000, LIST_BYTES = 1000 };
    struct responses_answer a = answer_start();
    struct bytes out = {0}, list = {0};
    while (list.n < LIST_BYTES)
        bytes_add(&list, list.n ? ",{}" : "{}", list.n ? 3 : 2);
    responses_add_begin(&out, &a);
    for (int i = 0; i < PIECES; i++) {
        out.n = 0;
        responses_add_text(&out, &a, "a", 1, &list);
        ck_assert_uint_gt(out.n, LIST_BYTES); // each piece has its own list
    }
    ck_assert_uint_lt(a.items[0].logprobs.n, 1 << 20);
    out.n = 0;
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_STOP, &usage, NULL, OUTPUT_CUT_NONE});
    ck_assert_uint_lt(out.n, 8 * PIECES);
    bytes_add(&out, "", 1);
    const char *at = out.data;
    struct event event;
    int n = 0;
    for (; event_next(&at, &event); n++) {
        if (n == 0) check_at(event.data, "logprobs", "[]");
        if (n == 3) check_at(event.data, "response.output.0.content.0.logprobs", "[]");
        if (n == 3) ck_assert_uint_eq(json_string_length(get(event.data, "response.output.0.content.0.text")), PIECES);
        json_decref(event.data);
    }
    ck_assert_int_eq(n, 4);
    answer_end(&a);
    bytes_free(&list);
    bytes_free(&out);
}
END_TEST

// Adds the events of an answer with reasoning, text and two calls.
static void parts_stream(struct responses_answer *a, struct bytes *out)
{
    const struct chat_call calls[] = {{.id = "c1"}, {.id = "c2"}};
    responses_add_begin(out, a);
    responses_add_part(out, a, OUTPUT_REASONING, NULL, "Hm", 2);
    responses_add_part(out, a, OUTPUT_REASONING, NULL, ".", 1);
    responses_add_part(out, a, OUTPUT_CONTENT, NULL, "Wait", 4);
    for (int i = 0; i < 2; i++) {
        responses_add_part(out, a, OUTPUT_CALL, &calls[i], "f", 1);
        responses_add_part(out, a, OUTPUT_ARGUMENTS, &calls[i], "{\"a\":", 5);
        responses_add_part(out, a, OUTPUT_ARGUMENTS, &calls[i], "1}", 2);
    }
    responses_add_end(out, a, &(struct responses_end){FINISH_REASON_LENGTH, &usage, NULL, OUTPUT_CUT_CALL});
    bytes_add(out, "", 1);
}

START_TEST(reasoning_and_calls_are_separate_items)
{
    static const char *const names[] = {"response.created",
                                        "response.in_progress",
                                        "response.output_item.added",
                                        "response.content_part.added",
                                        "response.reasoning_text.delta",
                                        "response.reasoning_text.delta",
                                        "response.reasoning_text.done",
                                        "response.content_part.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.content_part.added",
                                        "response.output_text.delta",
                                        "response.output_text.done",
                                        "response.content_part.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.done",
                                        "response.output_item.done",
                                        "response.output_item.added",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.done",
                                        "response.output_item.done",
                                        "response.incomplete"};
    static const char reasoning[] =
        "{\"type\":\"reasoning\",\"id\":\"rs-12ab-0\",\"status\":\"completed\",\"summary\":[],"
        "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"Hm.\"}]}";
    enum { N = sizeof names / sizeof *names };
    struct responses_answer a = answer_start();
    struct bytes out = {0};
    parts_stream(&a, &out);
    const char *at = out.data;
    struct event event;
    int n = 0;
    for (; event_next(&at, &event); n++) {
        ck_assert_int_lt(n, N);
        ck_assert_str_eq(event.name, names[n]);
        if (n == 4) check_at(event.data, "delta", "\"Hm\"");
        if (n == 4) ck_assert_ptr_null(get(event.data, "logprobs"));
        if (n == 8) check_at(event.data, "item", reasoning);
        if (n == 11) check_at(event.data, "output_index", "1");
        if (n == 15)
            check_at(event.data, "item",
                     "{\"type\":\"function_call\",\"id\":\"fc-12ab-2\",\"status\":\"in_progress\","
                     "\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"\"}");
        if (n == 16) check_at(event.data, "item_id", "\"fc-12ab-2\"");
        if (n == 18) check_at(event.data, "arguments", "\"{\\\"a\\\":1}\"");
        if (n == 25) check_at(event.data, "response.output.0", reasoning);
        if (n == 25) check_at(event.data, "response.output.2.status", "\"completed\"");
        if (n == 25)
            check_at(event.data, "response.output.3",
                     "{\"type\":\"function_call\",\"id\":\"fc-12ab-3\",\"status\":\"incomplete\",\"call_id\":\"c2\","
                     "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}");
        json_decref(event.data);
    }
    ck_assert_int_eq(n, N);
    answer_end(&a);
    bytes_free(&out);
}
END_TEST

// --- Messages

START_TEST(a_message_is_asked_for_as_a_chat)
{
    check_chat(message_to_chat,
               "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
               "{\"model\":\"m\",\"max_completion_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    check_chat(
        message_to_chat,
        "{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":"
        "\"ephemeral\"}}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}],"
        "\"stop_sequences\":[\"x\"],\"top_k\":3,\"top_p\":0.5,\"stream\":true,\"keep_rate\":0.3,"
        "\"metadata\":{\"user_id\":\"u\"},\"thinking\":{\"type\":\"disabled\"},\"tools\":[],\"n\":1,"
        "\"stop\":null,\"service_tier\":\"auto\"}",
        "{\"max_completion_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"s\"}]},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
        "\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}],\"stop\":[\"x\"],\"top_k\":3,\"top_p\":0.5,"
        "\"stream\":true,\"keep_rate\":0.3,\"user\":\"u\",\"n\":1}");
    json_t *body = parse("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"), *chat;
    ck_assert_int_eq(anthropic_to_chat(body, true, &chat), STATUS_OK); // counting needs no max_tokens
    json_decref(chat);
    json_decref(body);
}
END_TEST

START_TEST(tools_of_a_message_are_those_of_a_chat)
{
    check_chat(
        message_to_chat,
        "{\"max_tokens\":5,\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}],"
        "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":true},"
        "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"\"},"
        "{\"type\":\"redacted_thinking\",\"data\":\"d\"},{\"type\":\"text\",\"text\":\"b\"},"
        "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"x\":1}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"r\"},"
        "{\"type\":\"text\",\"text\":\"c\"}]}]}",
        "{\"max_completion_tokens\":5,\"parallel_tool_calls\":false,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\"}}}],"
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
        "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}],\"tool_calls\":[{\"id\":\"1\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"1\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}]}");
}
END_TEST

// Checks the messages of a chat that a conversation of turns becomes.
static void check_turns(const char *turns, const char *messages)
{
    char *body = mem_format("{\"max_tokens\":5,\"messages\":[%s]}", turns);
    char *chat = mem_format("{\"max_completion_tokens\":5,\"messages\":[%s]}", messages);
    check_chat(message_to_chat, body, chat);
    free(chat);
    free(body);
}

START_TEST(consecutive_turns_of_one_role_are_one_turn)
{
#define PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define CALL(id)   "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"f\",\"input\":{}}"
#define CALLED(id) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define RESULT(id) "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\",\"content\":\"r" id "\"}"
#define TOOL(id)   "{\"role\":\"tool\",\"content\":\"r" id "\",\"tool_call_id\":\"" id "\"}"
#define USER       "{\"role\":\"user\",\"content\":"
#define ASSISTANT  "{\"role\":\"assistant\",\"content\":"
    check_turns(USER "\"a\"}," USER "\"b\"}", USER "[" PART("a") "," PART("b") "]}");
    check_turns(USER "\"a\"}," USER "[" PART("b") "," PART("c") "]}," USER "\"d\"}",
                USER "[" PART("a") "," PART("b") "," PART("c") "," PART("d") "]}");
    // A turn that the model does not see again does not separate others.
    check_turns(USER "\"a\"}," ASSISTANT "[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"\"}]}," USER
                     "\"b\"}",
                USER "[" PART("a") "," PART("b") "]}");
    check_turns(USER "\"a\"}," ASSISTANT "\"b\"}," ASSISTANT "[" CALL("1") "]}," ASSISTANT "[" PART("c") "," CALL(
                    "2") "]}," USER "[" RESULT("1") "]}," USER "[" RESULT("2") "," PART("d") "]}," USER "\"e\"}",
                USER "\"a\"}," ASSISTANT "[" PART("b") "," PART("c") "],\"tool_calls\":[" CALLED("1") "," CALLED(
                    "2") "]}," TOOL("1") "," TOOL("2") "," USER "[" PART("d") "," PART("e") "]}");
    // Results precede the user's text, as within one turn.
    check_turns(USER "\"a\"}," ASSISTANT "[" CALL("1") "," CALL("2") "]}," USER
                                                                     "[" RESULT("1") "," PART("b") "]}," USER
                                                                                                   "[" RESULT("2") "]}",
                USER "\"a\"}," ASSISTANT "null,\"tool_calls\":[" CALLED("1") "," CALLED("2") "]}," TOOL("1") "," TOOL(
                    "2") "," USER "[" PART("b") "]}");
    check_turns(USER "\"a\"}," ASSISTANT "[" CALL("1") "]}," ASSISTANT
                                                       "[" CALL("2") "]}," USER "[" RESULT("1") "," RESULT("2") "]}",
                USER "\"a\"}," ASSISTANT
                     "null,\"tool_calls\":[" CALLED("1") "," CALLED("2") "]}," TOOL("1") "," TOOL("2"));
}
END_TEST

START_TEST(a_message_that_needs_more_is_refused)
{
#define TURNS "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
    static const struct refusal cases[] = {
        {"{}", "max_tokens: must be given"},
        {"{" TURNS "}", "max_tokens: must be given"},
        {"{\"max_tokens\":0," TURNS "}", "max_tokens 0: must be from 1"},
        {"{\"max_tokens\":\"5\"," TURNS "}", "max_tokens: must be a whole number"},
        {"{\"max_tokens\":5}", "messages: must be a list of turns"},
        {"{\"max_tokens\":5,\"messages\":[]}", "messages: must be a list of turns"},
        {"{\"max_tokens\":5,\"messages\":{}}", "messages: must be a list"},
        {"{\"max_tokens\":5,\"messages\":[5]}", "messages[0].role: must be user or assistant"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":\"a\"}]}", "messages[0].role: must be"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\"}]}", "messages[0].content: must be a string or a list"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
         "messages[0].content[0]: type image is not supported: send text"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
         "messages[0].content[0].tool_use_id: must be a string"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
         "\"b\"}]}",
         "messages: the last turn is the assistant's"},
        {"{\"max_tokens\":5,\"system\":5," TURNS "}", "system: must be a string or a list of blocks"},
        {"{\"max_tokens\":5,\"tools\":[{\"name\":\"f\"}]," TURNS "}", "tools[0]: must have name"},
        {"{\"max_tokens\":5,\"tools\":[{\"type\":\"bash_20250124\"}]," TURNS "}", "tools[0]: type bash_20250124"},
        {"{\"max_tokens\":5,\"tool_choice\":{\"type\":\"tool\"}," TURNS "}", "tool_choice: must be of type"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\"}]}]}",
         "messages[0].content[0]: a tool_use block must have"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"thinking\"}]}]}",
         "messages[0].content[0]"},
        {"{\"max_tokens\":5,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," TURNS "}",
         "thinking: not supported"},
        {"{\"max_tokens\":5,\"stop_sequences\":\"x\"," TURNS "}", "stop_sequences: must be a list"},
        {"{\"max_tokens\":5,\"max_completion_tokens\":5," TURNS "}",
         "max_completion_tokens: not supported: give max_tokens"},
        {"{\"max_tokens\":5,\"stop\":\"x\"," TURNS "}", "stop: not supported: give stop_sequences"},
        {"{\"max_tokens\":5,\"stream_options\":{}," TURNS "}", "stream_options: not supported"},
        {"{\"max_tokens\":5,\"logprobs\":true," TURNS "}", "logprobs: not supported, except false"},
        {"{\"max_tokens\":5,\"top_logprobs\":2," TURNS "}", "top_logprobs: not supported, except 0"},
        {"{\"max_tokens\":5,\"n\":2," TURNS "}", "n: not supported, except 1"},
        {"{\"max_tokens\":5,\"best_of\":2," TURNS "}", "best_of: not supported, except 1"},
        {"{\"max_tokens\":5,\"return_kept\":true," TURNS "}", "return_kept: not supported, except false"},
        {"{\"max_tokens\":5,\"return_token_ids\":true," TURNS "}", "return_token_ids: not supported, except false"},
        {"{\"max_tokens\":5,\"metadata\":5," TURNS "}", "metadata: must be an object"},
    };
    check_refusals(message_to_chat, cases, sizeof cases / sizeof *cases);
}
END_TEST

static const struct anthropic_answer answer = {"msg-12ab", "demo"};

START_TEST(a_message_says_why_it_stopped)
{
    static const struct {
        struct anthropic_end end;
        const char *reason, *sequence;
    } cases[] = {
        {{FINISH_REASON_STOP, NULL, &usage, false}, "\"end_turn\"", "null"},
        {{FINISH_REASON_STOP, NULL, &usage, true}, "\"tool_use\"", "null"},
        {{FINISH_REASON_LENGTH, NULL, &usage, true}, "\"max_tokens\"", "null"},
        {{FINISH_REASON_STOP, "\n\"", &usage, false}, "\"stop_sequence\"", "\"\\n\\\"\""},
    };
    for (int i = 0; i < 4; i++) {
        struct bytes out = {0};
        const struct bytes text = {.data = "Hi", .n = 2};
        anthropic_add_message(&out, &answer, &text, NULL, &cases[i].end);
        bytes_add(&out, "", 1);
        json_t *message = parse(out.data);
        check_at(message, "type", "\"message\"");
        check_at(message, "role", "\"assistant\"");
        check_at(message, "content", "[{\"type\":\"text\",\"text\":\"Hi\"}]");
        check_at(message, "stop_reason", cases[i].reason);
        check_at(message, "stop_sequence", cases[i].sequence);
        check_at(message, "usage",
                 "{\"input_tokens\":84,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":16,"
                 "\"output_tokens\":7}");
        json_decref(message);
        bytes_free(&out);
    }
}
END_TEST

START_TEST(a_streamed_message_has_anthropics_events_in_order)
{
    static const char *const names[] = {
        "message_start",      "ping",          "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop"};
    struct bytes out = {0};
    struct anthropic_blocks blocks = {0};
    anthropic_add_begin(&out, &answer, 100);
    anthropic_add_part(&out, &blocks, OUTPUT_CONTENT, NULL, "Hel", 3);
    anthropic_add_part(&out, &blocks, OUTPUT_CONTENT, NULL, "", 0);
    anthropic_add_part(&out, &blocks, OUTPUT_CONTENT, NULL, "lo", 2);
    anthropic_add_end(&out, &blocks, &(struct anthropic_end){FINISH_REASON_STOP, "x", &usage, false});
    bytes_add(&out, "", 1);
    const char *at = out.data;
    struct event event;
    int n = 0;
    for (; event_next(&at, &event); n++) {
        ck_assert_int_lt(n, 8);
        ck_assert_str_eq(event.name, names[n]);
        if (n == 0) check_at(event.data, "message.usage.input_tokens", "100");
        if (n == 0) check_at(event.data, "message.content", "[]");
        if (n == 3) check_at(event.data, "delta", "{\"type\":\"text_delta\",\"text\":\"Hel\"}");
        if (n == 6) check_at(event.data, "delta", "{\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"x\"}");
        if (n == 6) check_at(event.data, "usage.output_tokens", "7");
        json_decref(event.data);
    }
    ck_assert_int_eq(n, 8);
    bytes_free(&out);
}
END_TEST

START_TEST(an_error_has_anthropics_shape)
{
    static const struct {
        enum status status;
        const char *type;
    } cases[] = {
        {STATUS_INVALID, "\"invalid_request_error\""},      {STATUS_UNAUTHENTICATED, "\"authentication_error\""},
        {STATUS_NOT_FOUND, "\"not_found_error\""},          {STATUS_DENIED, "\"permission_error\""},
        {STATUS_EXHAUSTED, "\"rate_limit_error\""},         {STATUS_KEY_LIMIT, "\"rate_limit_error\""},
        {STATUS_UNAVAILABLE, "\"overloaded_error\""},       {STATUS_DEADLINE, "\"timeout_error\""},
        {STATUS_OUT_OF_RANGE, "\"invalid_request_error\""}, {STATUS_INTERNAL, "\"api_error\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes out = {0}, stream = {0};
        anthropic_add_error(&out, cases[i].status, "no \"such\" model");
        anthropic_add_error_event(&stream, cases[i].status, "no \"such\" model");
        bytes_add(&out, "", 1);
        bytes_add(&stream, "", 1);
        json_t *error = parse(out.data);
        check_at(error, "type", "\"error\"");
        check_at(error, "error.type", cases[i].type);
        check_at(error, "error.message", "\"no \\\"such\\\" model\"");
        const char *at = stream.data;
        struct event event;
        ck_assert(event_next(&at, &event));
        ck_assert(json_equal(event.data, error));
        json_decref(event.data);
        json_decref(error);
        bytes_free(&out);
        bytes_free(&stream);
    }
}
END_TEST

START_TEST(an_error_of_the_server_has_anthropics_shape)
{
    struct bytes out = {0};
    anthropic_add_http_error(&out, 413, "too large");
    bytes_add(&out, "", 1);
    json_t *error = parse(out.data);
    check_equal(error, "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\",\"message\":\"too large\"}}");
    json_decref(error);
    bytes_free(&out);
}
END_TEST

SUITE("json apis")
{
    TCASE("responses");
    TEST(a_response_is_asked_for_as_a_chat);
    TEST(a_response_with_tools_is_asked_for_as_a_chat);
    TEST(a_response_that_needs_more_is_refused);
    TEST(a_response_repeats_a_bounded_part_of_its_request);
    TEST(long_instructions_are_taken_but_not_repeated);
    TEST(a_response_is_an_object_with_a_message);
    TEST(a_streamed_response_has_openais_events_in_order);
    TEST(the_last_events_of_a_stream_leave_out_many_log_probabilities);
    TEST(reasoning_and_calls_are_separate_items);

    TCASE("messages");
    TEST(a_message_is_asked_for_as_a_chat);
    TEST(tools_of_a_message_are_those_of_a_chat);
    TEST(consecutive_turns_of_one_role_are_one_turn);
    TEST(a_message_that_needs_more_is_refused);
    TEST(a_message_says_why_it_stopped);
    TEST(a_streamed_message_has_anthropics_events_in_order);
    TEST(an_error_has_anthropics_shape);
    TEST(an_error_of_the_server_has_anthropics_shape);
}
