// SPDX-License-Identifier: Apache-2.0
// Bodies of OpenAI's Responses API become bodies of /v1/chat/completions, and answers get the shape and the events of
// this API.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_responses_answer.h"
#include "tests/json_expect.h"

static enum status to_chat(const json_t *body, json_t **chat_p)
{
    struct responses_tools tools = {0};
    enum status status = responses_to_chat(body, true, &tools, chat_p);
    responses_tools_fini(&tools);
    return status;
}

static const struct request_usage usage = {
    .prompt_tokens = 100, .kept_tokens = 40, .cached_tokens = 16, .completion_tokens = 7};

START_TEST(a_response_is_asked_for_as_a_chat)
{
    check_chat(to_chat, "{\"model\":\"m\",\"input\":\"Hi\",\"temperature\":0.5,\"stream\":true}",
               "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"temperature\":0.5,"
               "\"stream\":true}");
    check_chat(to_chat,
               "{\"instructions\":\"Be brief\",\"input\":[{\"role\":\"developer\",\"content\":\"a\"},"
               "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"b\"}]},"
               "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"msg_1\",\"status\":\"completed\","
               "\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[]}]}],"
               "\"max_output_tokens\":5,\"keep_rate\":0.3,\"seed\":1,\"user\":\"u\"}",
               "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief\"},{\"role\":\"system\",\"content\":\"a\"},"
               "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]},"
               "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}],"
               "\"max_completion_tokens\":5,\"keep_rate\":0.3,\"seed\":1,\"user\":\"u\"}");
    check_chat(to_chat, "{\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":2}");
    // Values that ask for nothing special are accepted.
    check_chat(to_chat,
               "{\"input\":\"Hi\",\"store\":true,\"background\":false,\"tools\":[],\"tool_choice\":\"auto\","
               "\"previous_response_id\":null,\"truncation\":\"auto\",\"max_tool_calls\":3,\"top_logprobs\":3,"
               "\"context_management\":[{\"type\":\"compaction\"}],\"text\":{\"format\":{\"type\":\"text\"}},"
               "\"reasoning\":{\"summary\":\"auto\"},\"include\":[\"reasoning.encrypted_content\"],\"metadata\":{\"a\":"
               "\"b\"},\"parallel_tool_calls\":false,"
               "\"service_tier\":\"flex\",\"instructions\":\"\",\"max_tokens\":null,\"n\":1,\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false}}",
               "{\"max_tokens\":null,\"n\":1,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
               "\"response_format\":{\"type\":\"text\"},"
               "\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false}");
    check_chat(to_chat,
               "{\"input\":\"Hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\",\"schema\":{}}}}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"response_format\":{\"type\":\"json_schema\","
               "\"json_schema\":{\"schema\":{}}}}");
    // A missing input is an empty turn.
    check_chat(to_chat, "{\"instructions\":\"s\"}",
               "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"\"}]}");
}
END_TEST

START_TEST(a_response_with_tools_is_asked_for_as_a_chat)
{
    check_chat(
        to_chat,
        "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"strict\":true,"
        "\"parameters\":{\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"description\":\"d\",\"strict\":true,\"parameters\":{\"type\":\"object\"}}}],"
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}");
    // The text and the calls of an answer are one turn; its reasoning is not shown again.
    check_chat(
        to_chat,
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

static enum status to_chat_without_system_turns(const json_t *body, json_t **chat_p)
{
    struct responses_tools tools = {0};
    enum status status = responses_to_chat(body, false, &tools, chat_p);
    responses_tools_fini(&tools);
    return status;
}

// Templates such as Mistral's refuse system turns after the first.
START_TEST(instructions_between_turns_join_the_turn_before_them)
{
    check_chat(
        to_chat_without_system_turns,
        "{\"instructions\":\"s\",\"input\":[{\"role\":\"developer\",\"content\":\"t\"},"
        "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"u\"},"
        "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"developer\",\"content\":\"v\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"},"
        "{\"type\":\"text\",\"text\":\"t\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"u\"}]},{\"role\":\"assistant\",\"content\":\"b\"},"
        "{\"role\":\"user\",\"content\":\"v\"}]}");
}
END_TEST

START_TEST(a_response_that_needs_more_is_refused)
{
#define TEN  "0123456789"
#define LONG TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
    static const struct refusal cases[] = {
        {"{\"input\":[]}", "input: must be a string or a list of items"},
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
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}",
         "tools: type web_search is not supported, and there is no"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"web search\\r\\n\"}]}", "tools[0].type: must be function, custom"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]}", "tools[0].name: must be a string"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"custom\",\"name\":\"a b\"}]}", "tools[0].name: must be 1 to 128"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"a\"}]}", "tools[0].tools: must be a list"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"tools\":[]}]}", "tools[0].name: must be 1 to 128"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"a\",\"tools\":[{\"type\":\"mcp\"}]}]}",
         "tools[0].tools[0].type: must be function or custom"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"f\"}]}",
         "tools[1].name: another tool has the name f too"},
        {"{\"input\":\"a\",\"tool_choice\":{\"type\":\"web_search\"}}", "tool_choice: must be none, auto, required, a"},
        {"{\"input\":\"a\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"mcp\"}]"
         "}}",
         "tool_choice: none of the allowed tools is supported"},
        {"{\"input\":\"a\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[5]}}",
         "tool_choice: must be none"},
        {"{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"f\"}]}",
         "input[0]: must have call_id, name and input, strings"},
        {"{\"input\":[{\"type\":\"mcp_call\"}]}", "input[0]: type mcp_call is not supported: send items of the types"},
        {"{\"input\":\"a\",\"tools\":[5]}", "tools[0]: must be an object with a type"},
        {"{\"input\":\"a\",\"tools\":5}", "tools: must be a list"},
        {"{\"input\":\"a\",\"tool_choice\":{\"type\":\"function\"}}", "tool_choice: must be none, auto, required"},
        {"{\"input\":\"a\",\"include\":[5]}", "include[0]: not supported: must be message.output_text.logprobs"},
        {"{\"input\":\"a\",\"include\":[\"message.output_text.logprobs\",\"other\"]}", "include[1]: not supported"},
        {"{\"input\":\"a\",\"truncation\":\"middle\"}", "truncation: must be auto or disabled"},
        {"{\"input\":\"a\",\"max_tool_calls\":0}", "max_tool_calls 0: must be from 1"},
        {"{\"input\":\"a\",\"reasoning\":\"low\"}", "reasoning: must be an object"},
        {"{\"input\":\"a\",\"reasoning\":{\"effort\":5}}", "reasoning.effort: must be a string"},
        {"{\"input\":\"a\",\"text\":{\"verbosity\":[]}}", "text.verbosity: must be a string"},
        {"{\"input\":\"a\",\"top_logprobs\":21,\"include\":[\"message.output_text.logprobs\"]}",
         "top_logprobs 21: must be"},
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
    check_refusals(to_chat, cases, sizeof cases / sizeof *cases);
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
        ck_assert_int_eq(to_chat(body, &chat), STATUS_INVALID);
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
        ck_assert_int_eq(to_chat(body, &chat), STATUS_OK);
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
        const struct responses_end end = {reasons[i], &usage, "the node was lost", OUTPUT_CUT_NONE, 1700000009, NULL};
        responses_set_items(&a, &(struct bytes){"a\"\n", 3, 0}, &(struct bytes){0}, NULL);
        responses_add_whole(&out, &a, &end);
        bytes_add(&out, "", 1);
        json_t *response = parse(out.data);
        check_at(response, "id", "\"resp-12ab\"");
        check_at(response, "object", "\"response\"");
        check_at(response, "created_at", "1700000000");
        check_at(response, "completed_at", i == 0 ? "1700000009" : "null");
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
    responses_add_begin(&out, &a, &usage);
    const char *const pieces[] = {"Hel", "", "lo"}, *const lists[] = {"{\"a\":1}", "", "{\"b\":2},{\"c\":3}"};
    for (int i = 0; i < 3; i++)
        responses_add_text(&out, &a, pieces[i], strlen(pieces[i]),
                           &(struct bytes){(char *)lists[i], strlen(lists[i]), 0});
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_STOP, &usage, NULL, OUTPUT_CUT_NONE, 0, NULL});
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
    responses_add_begin(&out, &a, &usage);
    for (int i = 0; i < PIECES; i++) {
        out.n = 0;
        responses_add_text(&out, &a, "a", 1, &list);
        ck_assert_uint_gt(out.n, LIST_BYTES); // each piece has its own list
    }
    ck_assert_uint_lt(a.items[0].logprobs.n, 1 << 20);
    out.n = 0;
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_STOP, &usage, NULL, OUTPUT_CUT_NONE, 0, NULL});
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
    responses_add_begin(out, a, &usage);
    responses_add_part(out, a, OUTPUT_REASONING, NULL, "Hm", 2);
    responses_add_part(out, a, OUTPUT_REASONING, NULL, ".", 1);
    responses_add_part(out, a, OUTPUT_CONTENT, NULL, "Wait", 4);
    for (int i = 0; i < 2; i++) {
        responses_add_part(out, a, OUTPUT_CALL, &calls[i], "f", 1);
        responses_add_part(out, a, OUTPUT_ARGUMENTS, &calls[i], "{\"a\":", 5);
        responses_add_part(out, a, OUTPUT_ARGUMENTS, &calls[i], "1}", 2);
    }
    responses_add_end(out, a, &(struct responses_end){FINISH_REASON_LENGTH, &usage, NULL, OUTPUT_CUT_CALL, 0, NULL});
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
        if (n == 18) check_at(event.data, "name", "\"f\"");
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

// Returns the response object of a whole answer: text, a call, text, and a call that was cut.
static json_t *whole_answer_with_two_calls(void)
{
    struct chat_call calls[] = {
        {.id = "c1", .name = {"f", 1, 0}, .arguments = {"{}", 2, 0}, .text_at = 5, .logprobs_at = 7},
        {.id = "c2", .name = {"f", 1, 0}, .arguments = {"{\"a", 3, 0}, .text_at = 11, .logprobs_at = 15}};
    const struct chat_answer chat = {.calls = calls, .n_calls = 2};
    const struct bytes text = {"FirstSecond", 11, 0}, logprobs = {"{\"a\":1},{\"b\":2}", 15, 0};
    struct responses_answer a = answer_start();
    struct bytes out = {0};
    responses_set_items(&a, &text, &logprobs, &chat);
    responses_add_whole(&out, &a,
                        &(struct responses_end){FINISH_REASON_LENGTH, &usage, NULL, OUTPUT_CUT_CALL, 0, NULL});
    bytes_add(&out, "", 1);
    json_t *response = parse(out.data);
    answer_end(&a);
    bytes_free(&out);
    return response;
}

// Returns the response object in the last event of the same answer as a stream.
static json_t *streamed_answer_with_two_calls(void)
{
    const struct chat_call calls[] = {{.id = "c1"}, {.id = "c2"}};
    struct responses_answer a = answer_start();
    struct bytes out = {0};
    json_t *response = NULL;
    responses_add_part(&out, &a, OUTPUT_CONTENT, NULL, "First", 5);
    responses_add_text(&out, &a, "", 0, &(struct bytes){"{\"a\":1}", 7, 0});
    responses_add_part(&out, &a, OUTPUT_CALL, &calls[0], "f", 1);
    responses_add_part(&out, &a, OUTPUT_ARGUMENTS, &calls[0], "{}", 2);
    responses_add_part(&out, &a, OUTPUT_CONTENT, NULL, "Second", 6);
    responses_add_text(&out, &a, "", 0, &(struct bytes){"{\"b\":2}", 7, 0});
    responses_add_part(&out, &a, OUTPUT_CALL, &calls[1], "f", 1);
    responses_add_part(&out, &a, OUTPUT_ARGUMENTS, &calls[1], "{\"a", 3);
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_LENGTH, &usage, NULL, OUTPUT_CUT_CALL, 0, NULL});
    bytes_add(&out, "", 1);
    const char *at = out.data;
    for (struct event event; event_next(&at, &event); json_decref(event.data))
        if (strcmp(event.name, "response.incomplete") == 0)
            response = json_incref(json_object_get(event.data, "response"));
    answer_end(&a);
    bytes_free(&out);
    return response;
}

// The last item is the one that was cut, and items stand in the order in which the model wrote them.
START_TEST(a_whole_answer_has_the_items_of_a_stream)
{
    json_t *whole = whole_answer_with_two_calls(), *streamed = streamed_answer_with_two_calls();
    char *text = json_dumps(json_object_get(whole, "output"), JSON_COMPACT);
    ck_assert_msg(json_equal(json_object_get(whole, "output"), json_object_get(streamed, "output")), "%s", text);
    check_at(whole, "output.0.content.0.logprobs", "[{\"a\":1}]");
    check_at(whole, "output.1.status", "\"completed\"");
    check_at(whole, "output.2.content.0.text", "\"Second\"");
    check_at(whole, "output.2.content.0.logprobs", "[{\"b\":2}]");
    check_at(whole, "output.3.arguments", "\"{\\\"a\"");
    check_at(whole, "output.3.status", "\"incomplete\"");
    ck_assert_uint_eq(json_array_size(json_object_get(whole, "output")), 4);
    free(text);
    json_decref(whole);
    json_decref(streamed);
}
END_TEST

// --- tools of other types than function

static const char three_types[] =
    "{\"input\":\"Hi\",\"tools\":[{\"type\":\"web_search\"},"
    "{\"type\":\"custom\",\"name\":\"patch\",\"description\":\"d\",\"format\":{\"type\":\"grammar\",\"syntax\":"
    "\"lark\","
    "\"definition\":\"start: /a+/\"}},{\"type\":\"namespace\",\"name\":\"mcp__files\",\"description\":\"n\",\"tools\":["
    "{\"type\":\"function\",\"name\":\"read\",\"parameters\":{\"type\":\"object\"}},"
    "{\"type\":\"custom\",\"name\":\"note\"}]},{\"type\":\"web_search\"},{\"type\":\"image_generation\"}]}";

START_TEST(custom_tools_and_namespaces_become_functions)
{
    struct responses_tools tools = {0};
    json_t *body = parse(three_types), *chat;
    ck_assert_int_eq(responses_to_chat(body, true, &tools, &chat), STATUS_OK);
    check_at(
        chat, "tools.0",
        "{\"type\":\"function\",\"function\":{\"name\":\"patch\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"description\":\"The input of the tool, a text "
        "that matches this grammar (lark):\\nstart: /a+/\"}},\"required\":[\"input\"],"
        "\"additionalProperties\":false}}}");
    check_at(
        chat, "tools.1",
        "{\"type\":\"function\",\"function\":{\"name\":\"mcp__files__read\",\"parameters\":{\"type\":\"object\"}}}");
    check_at(chat, "tools.2.function.name", "\"mcp__files__note\"");
    ck_assert_uint_eq(json_array_size(json_object_get(chat, "tools")), 3);
    check_equal(tools.left_out, "[\"web_search\",\"image_generation\"]");
    check_equal(tools.renamed,
                "{\"patch\":{\"name\":\"patch\",\"custom\":true},"
                "\"mcp__files__read\":{\"name\":\"read\",\"custom\":false,\"namespace\":\"mcp__files\"},"
                "\"mcp__files__note\":{\"name\":\"note\",\"custom\":true,\"namespace\":\"mcp__files\"}}");
    char *echo = responses_echo(body), *repeated = mem_format("{\"id\":1%s}", echo);
    json_t *response = parse(repeated);
    check_at(response, "tools.0.type", "\"custom\""); // tools that were left out are not repeated
    json_decref(response);
    free(repeated);
    free(echo);
    json_decref(chat);
    json_decref(body);
    responses_tools_fini(&tools);
}
END_TEST

START_TEST(a_choice_of_tools_names_what_the_model_sees)
{
    static const struct {
        const char *choice, *expected;
    } cases[] = {
        {"{\"type\":\"custom\",\"name\":\"patch\"}", "{\"type\":\"function\",\"function\":{\"name\":\"patch\"}}"},
        {"{\"type\":\"function\",\"name\":\"read\"}",
         "{\"type\":\"function\",\"function\":{\"name\":\"mcp__files__read\"}}"},
        {"{\"type\":\"function\",\"name\":\"mcp__files.read\"}",
         "{\"type\":\"function\",\"function\":{\"name\":\"mcp__files__read\"}}"},
        {"{\"type\":\"function\",\"name\":\"read\",\"namespace\":\"mcp__files\"}",
         "{\"type\":\"function\",\"function\":{\"name\":\"mcp__files__read\"}}"},
        {"{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"web_search\"},"
         "{\"type\":\"custom\",\"name\":\"note\"}]}",
         "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":["
         "{\"type\":\"function\",\"function\":{\"name\":\"mcp__files__note\"}}]}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *body = parse(three_types), *chat;
        json_object_set_new(body, "tool_choice", parse(cases[i].choice));
        ck_assert_int_eq(to_chat(body, &chat), STATUS_OK);
        check_at(chat, "tool_choice", cases[i].expected);
        json_decref(chat);
        json_decref(body);
    }
}
END_TEST

START_TEST(earlier_calls_have_the_names_that_the_model_sees)
{
    check_chat(
        to_chat,
        "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"type\":\"custom_tool_call\",\"id\":\"ctc_1\",\"status\":\"completed\",\"call_id\":\"c1\",\"name\":"
        "\"patch\","
        "\"input\":\"x\\ny\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c2\",\"namespace\":\"mcp__\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c1\",\"output\":[{\"type\":\"input_text\",\"text\":\"3\"},"
        "{\"type\":\"input_text\",\"text\":\"4\"}]},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":\"5\",\"status\":\"completed\"},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"phase\":\"final_answer\",\"content\":["
        "{\"type\":\"refusal\",\"refusal\":\"No\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
        "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"patch\",\"arguments\":\"{\\\"input\\\":"
        "\\\"x\\\\ny\\\"}\"}},"
        "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"mcp__f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":[{\"type\":\"text\",\"text\":\"3\"},"
        "{\"type\":\"text\",\"text\":\"4\"}]},{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"5\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"No\"}]}]}");
}
END_TEST

START_TEST(effort_and_verbosity_are_those_of_a_chat)
{
    check_chat(to_chat,
               "{\"input\":\"a\",\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},"
               "\"text\":{\"verbosity\":\"high\"}}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":\"low\","
               "\"verbosity\":\"high\"}");
    json_t *body = parse("{\"input\":\"a\",\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},\"text\":"
                         "{\"verbosity\":\"high\"},\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}");
    char *echo = responses_echo(body), *repeated = mem_format("{\"id\":1%s}", echo);
    json_t *response = parse(repeated);
    check_at(response, "reasoning", "{\"effort\":\"low\",\"summary\":null}");
    check_at(response, "text", "{\"verbosity\":\"high\",\"format\":{\"type\":\"text\"}}");
    check_at(response, "tools.0", "{\"type\":\"function\",\"name\":\"f\",\"strict\":null,\"parameters\":null}");
    json_decref(response);
    free(repeated);
    free(echo);
    json_decref(body);
}
END_TEST

// Streams a call of the custom tool patch with the given arguments, `piece` bytes at a time. Returns the item.
static json_t *custom_call(const char *arguments, size_t piece)
{
    struct responses_tools tools = {0};
    json_t *body = parse(three_types), *chat, *item = NULL;
    ck_assert_int_eq(responses_to_chat(body, true, &tools, &chat), STATUS_OK);
    struct responses_answer a = answer_start();
    struct bytes out = {0}, deltas = {0};
    const struct chat_call call = {.id = "c1"};
    const size_t n = strlen(arguments);
    a.tools = tools.renamed;
    responses_add_part(&out, &a, OUTPUT_CALL, &call, "patch", 5);
    for (size_t i = 0; i < n; i += piece)
        responses_add_part(&out, &a, OUTPUT_ARGUMENTS, &call, arguments + i, n - i < piece ? n - i : piece);
    responses_add_end(&out, &a, &(struct responses_end){FINISH_REASON_STOP, &usage, NULL, OUTPUT_CUT_NONE, 0, NULL});
    bytes_add(&out, "", 1);
    const char *at = out.data;
    for (struct event event; event_next(&at, &event); json_decref(event.data)) {
        if (strcmp(event.name, "response.output_item.added") == 0) check_at(event.data, "item.input", "\"\"");
        const char *delta = json_string_value(get(event.data, "delta"));
        if (delta) ck_assert_str_eq(event.name, "response.custom_tool_call_input.delta");
        if (delta) bytes_add(&deltas, delta, strlen(delta));
        if (strcmp(event.name, "response.output_item.done") == 0)
            item = json_incref(json_object_get(event.data, "item"));
        if (strcmp(event.name, "response.custom_tool_call_input.done") == 0) check_at(event.data, "output_index", "0");
    }
    bytes_add(&deltas, "", 1);
    ck_assert_str_eq(deltas.data, json_string_value(json_object_get(item, "input")));
    answer_end(&a);
    bytes_free(&out);
    bytes_free(&deltas);
    json_decref(chat);
    json_decref(body);
    responses_tools_fini(&tools);
    return item;
}

START_TEST(a_call_of_a_custom_tool_has_its_input_as_text)
{
    static const struct {
        const char *arguments, *input;
    } cases[] = {
        {"{\"input\": \"a\\n\\\"b\\\" \\u00e9 \\ud83d\\ude00 \xc3\xa9\"}",
         "a\n\"b\" \xc3\xa9 \xf0\x9f\x98\x80 \xc3\xa9"},
        {" {\n\"input\" :\t\"\"}", ""},
        {"{\"input\":\"a\",\"other\":1}", "a"},
        {"{\"other\":\"a\"}", "{\"other\":\"a\"}"}, // another form: the arguments are the input
        {"{\"input\":5}", "{\"input\":5}"},
        {"{\"input\":\"\\ud83dx\\u12g4\\q\"}", "\xef\xbf\xbdx\xef\xbf\xbdq"},
        {"{\"input\":\"cut\\u00", "cut"},
        {"{\"inp", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t piece = 1; piece < 64; piece *= 3) {
            // A stream cuts between characters, so pieces of a single byte are for ASCII.
            if (piece < 4 && i == 0) continue;
            json_t *item = custom_call(cases[i].arguments, piece == 27 ? 64 : piece);
            check_at(item, "type", "\"custom_tool_call\"");
            check_at(item, "id", "\"ctc-12ab-0\"");
            check_at(item, "name", "\"patch\"");
            ck_assert_str_eq(json_string_value(json_object_get(item, "input")), cases[i].input);
            json_decref(item);
        }
    }
}
END_TEST

SUITE("responses")
{
    TEST(a_response_is_asked_for_as_a_chat);
    TEST(a_response_with_tools_is_asked_for_as_a_chat);
    TEST(instructions_between_turns_join_the_turn_before_them);
    TEST(a_response_that_needs_more_is_refused);
    TEST(a_response_repeats_a_bounded_part_of_its_request);
    TEST(long_instructions_are_taken_but_not_repeated);
    TEST(a_response_is_an_object_with_a_message);
    TEST(a_streamed_response_has_openais_events_in_order);
    TEST(the_last_events_of_a_stream_leave_out_many_log_probabilities);
    TEST(reasoning_and_calls_are_separate_items);
    TEST(a_whole_answer_has_the_items_of_a_stream);

    TCASE("tools");
    TEST(custom_tools_and_namespaces_become_functions);
    TEST(a_choice_of_tools_names_what_the_model_sees);
    TEST(earlier_calls_have_the_names_that_the_model_sees);
    TEST(effort_and_verbosity_are_those_of_a_chat);
    TEST(a_call_of_a_custom_tool_has_its_input_as_text);
}
