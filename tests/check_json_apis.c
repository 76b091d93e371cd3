// SPDX-License-Identifier: Apache-2.0
// Bodies of Anthropic's Messages API become bodies of /v1/chat/completions, and answers get the shape and the events of
// this API.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/json_anthropic.h"
#include "router/front/http/json_anthropic_answer.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_images.h"
#include "tests/json_expect.h"

static enum status message_to_chat(const json_t *body, json_t **chat_p)
{
    return anthropic_to_chat(body, &(struct anthropic_options){0}, chat_p);
}

// Translates for a chat template that renders system turns anywhere.
static enum status message_with_system_turns(const json_t *body, json_t **chat_p)
{
    return anthropic_to_chat(body, &(struct anthropic_options){.system_turns = true}, chat_p);
}

static const struct request_usage usage = {
    .prompt_tokens = 100, .kept_tokens = 40, .cached_tokens = 16, .completion_tokens = 7};

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
        "\"metadata\":{\"user_id\":\"u\"},\"tools\":[],\"n\":1,"
        "\"stop\":null,\"service_tier\":\"auto\"}",
        "{\"max_completion_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"s\"}]},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
        "\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}],\"stop\":[\"x\"],\"top_k\":3,\"top_p\":0.5,"
        "\"stream\":true,\"keep_rate\":0.3,\"user\":\"u\",\"n\":1}");
    json_t *body = parse("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"), *chat;
    ck_assert_int_eq(anthropic_to_chat(body, &(struct anthropic_options){.counted = true}, &chat),
                     STATUS_OK); // counting needs no max_tokens
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
static void check_turns_by(translate_fn *translate, const char *turns, const char *messages)
{
    char *body = mem_format("{\"max_tokens\":5,\"messages\":[%s]}", turns);
    char *chat = mem_format("{\"max_completion_tokens\":5,\"messages\":[%s]}", messages);
    check_chat(translate, body, chat);
    free(chat);
    free(body);
}

static void check_turns(const char *turns, const char *messages)
{
    check_turns_by(message_to_chat, turns, messages);
}

START_TEST(a_call_keeps_an_input_that_is_no_object)
{
    check_turns(
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":\"x\"}]},"
        "{\"role\":\"user\",\"content\":\"a\"}",
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"\\\"x\\\"\"}}]},{\"role\":\"user\",\"content\":\"a\"}");
}
END_TEST

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

#define SYSTEM "{\"role\":\"system\",\"content\":"

START_TEST(system_turns_stay_in_their_places)
{
    check_turns_by(message_with_system_turns,
                   SYSTEM "\"s\"}," SYSTEM "\"t\"}," USER "\"a\"}," SYSTEM "[" PART("u") "]}," USER "\"b\"}," SYSTEM
                                                                                         "\"v\"}",
                   SYSTEM "[" PART("s") "," PART("t") "]}," USER "\"a\"}," SYSTEM
                                                      "[" PART("u") "]}," USER "\"b\"}," SYSTEM "\"v\"}");
    // A call is followed by its result.
    check_turns_by(
        message_with_system_turns,
        USER "\"a\"}," ASSISTANT "[" CALL("1") "]}," SYSTEM "\"s\"}," USER "[" RESULT("1") "," PART("b") "]}",
        USER "\"a\"}," ASSISTANT "null,\"tool_calls\":[" CALLED("1") "]}," TOOL("1") "," USER "[" PART("b") "]}," SYSTEM
                                                                                                            "\"s\"}");
}
END_TEST

// Templates such as Mistral's refuse system turns after the first.
START_TEST(system_turns_join_the_turn_before_them)
{
    check_turns(SYSTEM "\"s\"}," USER "\"a\"}," SYSTEM "\"t\"}," USER "\"b\"}," ASSISTANT "\"c\"}," SYSTEM
                       "[" PART("u") "]}," USER "\"d\"}",
                SYSTEM "\"s\"}," USER "[" PART("a") "," PART("t") "," PART("b") "]}," ASSISTANT "\"c\"}," USER
                                                                                "[" PART("u") "," PART("d") "]}");
    check_turns(USER "\"a\"}," ASSISTANT "[" CALL("1") "]}," SYSTEM "\"s\"}," USER "[" RESULT("1") "]}",
                USER "\"a\"}," ASSISTANT "null,\"tool_calls\":[" CALLED("1") "]},{\"role\":\"tool\",\"content\":[" PART(
                    "r1") "," PART("s") "],\"tool_call_id\":\"1\"}");
}
END_TEST

#define HELLO_TURN "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

START_TEST(thinking_and_effort_are_variables_of_the_template)
{
    static const char *const cases[][2] = {
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"},\"output_config\":{\"effort\":\"high\"}",
         "\"chat_template_kwargs\":{\"enable_thinking\":true,\"thinking\":true},\"reasoning_effort\":\"high\""},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"chat_template_kwargs\":{\"thinking\":false,"
         "\"x\":1}",
         "\"chat_template_kwargs\":{\"enable_thinking\":true,\"thinking\":false,\"x\":1,\"thinking_budget\":1024}"},
        {"\"thinking\":{\"type\":\"disabled\"}",
         "\"chat_template_kwargs\":{\"enable_thinking\":false,\"thinking\":false}"},
        {"\"output_config\":{\"effort\":null,\"format\":{\"type\":\"text\"}},\"output_format\":{\"type\":\"text\"}",
         "\"response_format\":{\"type\":\"text\"}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = mem_format("{\"max_tokens\":5,%s," HELLO_TURN "}", cases[i][0]);
        char *chat = mem_format("{\"max_completion_tokens\":5,%s," HELLO_TURN "}", cases[i][1]);
        check_chat(message_to_chat, body, chat);
        free(chat);
        free(body);
    }
}
END_TEST

// The shape of a request of Claude Code 2.1 in the second step of an agent, with short texts.
START_TEST(a_request_of_claude_code_is_asked_for_as_a_chat)
{
    check_chat(
        message_with_system_turns,
        "{\"model\":\"m\",\"max_tokens\":32000,\"stream\":true,"
        "\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"},\"output_config\":{\"effort\":\"high\"},"
        "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]},"
        "\"metadata\":{\"user_id\":\"{\\\"device_id\\\":\\\"d\\\"}\"},"
        "\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=2.1.332.0b8;\"},"
        "{\"type\":\"text\",\"text\":\"You are an agent.\",\"cache_control\":{\"type\":\"ephemeral\"}}],"
        "\"tools\":[{\"name\":\"Bash\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
        "\"eager_input_streaming\":true},{\"name\":\"DeferredToolPlaceholder\",\"description\":\"p\","
        "\"input_schema\":{\"type\":\"object\"},\"defer_loading\":true}],"
        "\"messages\":[" USER "[" PART("reminder") "," PART(
            "list") "]}," SYSTEM "[{\"type\":\"text\",\"text\":\"environment\",\"cache_control\":{\"type\":"
                    "\"ephemeral\"}}]}," ASSISTANT
                    "[{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"},{\"type\":\"tool_use\",\"id\":\"1\","
                    "\"name\":\"Bash\",\"input\":{\"command\":\"ls\"},\"caller\":{\"type\":\"direct\"}}]}," USER
                    "[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"is_error\":false,\"content\":[" PART(
                        "a") "," PART("b") ",{\"type\":\"tool_reference\",\"tool_name\":\"WebFetch\"}],"
                                           "\"cache_control\":{\"type\":\"ephemeral\"}}]}," SYSTEM "\"note\"}]}",
        "{\"model\":\"m\",\"max_completion_tokens\":32000,\"stream\":true,\"user\":\"{\\\"device_id\\\":\\\"d\\\"}\","
        "\"chat_template_kwargs\":{\"enable_thinking\":true,\"thinking\":true},\"reasoning_effort\":\"high\","
        "\"tool_choice\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"Bash\","
        "\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":"
        "{\"name\":\"DeferredToolPlaceholder\",\"description\":\"p\",\"parameters\":{\"type\":\"object\"}}}],"
        "\"messages\":[" SYSTEM
        "[" PART("You are an agent.") "]}," USER "[" PART("reminder") "," PART("list") "]}," SYSTEM "[" PART(
            "environment") "]}," ASSISTANT "null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
                           "{\"name\":\"Bash\",\"arguments\":\"{\\\"command\\\":\\\"ls\\\"}\"}}]},{\"role\":\"tool\","
                           "\"content\":[" PART("a") "," PART("b") "," PART(
                               "WebFetch") "],\"tool_call_id\":\"1\"}," SYSTEM "\"note\"}]}");
}
END_TEST

static void check_images(const char *body, const char *expected)
{
    json_t *value = parse(body);
    json_images_replace(value, "[image]");
    check_equal(value, expected);
    json_decref(value);
}

START_TEST(images_of_all_apis_are_replaced)
{
#define IMAGE        "{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"x\"}}"
#define REPLACED     PART("[image]")
#define IN_RESULT(p) USER "[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":[" PART("a") "," p "]}," p "]}"
    check_images("{\"messages\":[" IN_RESULT(IMAGE) "]}", "{\"messages\":[" IN_RESULT(REPLACED) "]}");
    check_images("{\"messages\":[" USER "[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}," PART("a") "]}]}",
                 "{\"messages\":[" USER "[" REPLACED "," PART("a") "]}]}");
    check_images("{\"input\":[" USER "[{\"type\":\"input_image\",\"image_url\":\"x\"}]},"
                 "{\"type\":\"function_call_output\",\"output\":[{\"type\":\"input_image\"}]}]}",
                 "{\"input\":[" USER "[{\"type\":\"input_text\",\"text\":\"[image]\"}]},"
                 "{\"type\":\"function_call_output\",\"output\":[{\"type\":\"input_text\",\"text\":\"[image]\"}]}]}");
    // Arguments of a call are the user's data. Other values are refused later.
    check_images(
        "{\"messages\":[{\"tool_calls\":[{\"type\":\"image\"}]},5,{\"content\":{\"type\":\"image\"}}],\"input\":5}",
        "{\"messages\":[{\"tool_calls\":[{\"type\":\"image\"}]},5,{\"content\":{\"type\":\"image\"}}],\"input\":5}");
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
        {"{\"max_tokens\":5,\"messages\":[5]}", "messages[0].role: must be user, assistant or system"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "messages[0].role: must be"},
        {"{\"max_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":[" CALL("1") "]}]}",
         "messages[0].content[0]: type tool_use is not supported"},
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
        {"{\"max_tokens\":5,\"thinking\":{\"type\":\"on\"}," TURNS "}",
         "thinking.type: must be enabled, adaptive or disabled"},
        {"{\"max_tokens\":5,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}," TURNS "}",
         "thinking.budget_tokens: must be a whole number from 1"},
        {"{\"max_tokens\":5,\"output_config\":{\"effort\":5}," TURNS "}", "output_config.effort: must be a string"},
        {"{\"max_tokens\":5,\"output_config\":{\"effort\":\"\"}," TURNS "}", "output_config.effort: must be a word"},
        {"{\"max_tokens\":5,\"output_config\":{\"format\":{\"type\":\"text\"}},\"output_format\":{\"type\":\"json_"
         "object\"}," TURNS "}",
         "output_format: not allowed together with output_config.format"},
        {"{\"max_tokens\":5,\"context_management\":5," TURNS "}", "context_management: must be an object"},
        {"{\"max_tokens\":5,\"container\":{\"id\":\"c\",\"skills\":[]}," TURNS "}", "container.skills: not supported"},
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
        {{FINISH_REASON_STOP, NULL, &usage, false, NULL}, "\"end_turn\"", "null"},
        {{FINISH_REASON_STOP, NULL, &usage, true, NULL}, "\"tool_use\"", "null"},
        {{FINISH_REASON_LENGTH, NULL, &usage, true, NULL}, "\"max_tokens\"", "null"},
        {{FINISH_REASON_STOP, "\n\"", &usage, false, NULL}, "\"stop_sequence\"", "\"\\n\\\"\""},
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

START_TEST(an_input_that_was_cut_has_only_whole_values)
{
    static const char *const cases[][2] = {
        {"{\"a\":1,\"b\":23}", "{\"a\":1,\"b\":23}"},
        {"{\"a\":1,\"b\":2", "{\"a\":1}"},
        {"{\"a\":1,\"b\":-1.5e", "{\"a\":1}"},
        {"{\"a\":1,\"b\":23 ", "{\"a\":1,\"b\":23}"},
        {"{\"a\":[1,2", "{\"a\":[1]}"},
        {"{\"a\":1,\"b\":true", "{\"a\":1,\"b\":true}"},
        {"{\"a\":1,\"b\":tru", "{\"a\":1}"},
        {"{\"a\":\"x\",\"b\":\"y", "{\"a\":\"x\"}"},
        {"{\"a\":\"x1\"", "{\"a\":\"x1\"}"},
        {"{\"a\":1", "{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes out = {0};
        const struct bytes text = {0};
        struct chat_call call = {.id = "1", .name = {.data = "f", .n = 1}};
        call.arguments = (struct bytes){.data = (char *)cases[i][0], .n = strlen(cases[i][0])};
        const struct chat_answer chat = {.calls = &call, .n_calls = 1};
        anthropic_add_message(&out, &answer, &text, &chat,
                              &(struct anthropic_end){.reason = FINISH_REASON_LENGTH, .usage = &usage});
        bytes_add(&out, "", 1);
        json_t *message = parse(out.data);
        check_equal(json_object_get(json_array_get(json_object_get(message, "content"), 0), "input"), cases[i][1]);
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
    anthropic_add_end(&out, &blocks, &(struct anthropic_end){FINISH_REASON_STOP, "x", &usage, false, NULL});
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
    TEST(a_message_is_asked_for_as_a_chat);
    TEST(tools_of_a_message_are_those_of_a_chat);
    TEST(a_call_keeps_an_input_that_is_no_object);
    TEST(consecutive_turns_of_one_role_are_one_turn);
    TEST(system_turns_stay_in_their_places);
    TEST(system_turns_join_the_turn_before_them);
    TEST(thinking_and_effort_are_variables_of_the_template);
    TEST(a_request_of_claude_code_is_asked_for_as_a_chat);
    TEST(images_of_all_apis_are_replaced);
    TEST(a_message_that_needs_more_is_refused);
    TEST(a_message_says_why_it_stopped);
    TEST(an_input_that_was_cut_has_only_whole_values);
    TEST(a_streamed_message_has_anthropics_events_in_order);
    TEST(an_error_has_anthropics_shape);
    TEST(an_error_of_the_server_has_anthropics_shape);
}
