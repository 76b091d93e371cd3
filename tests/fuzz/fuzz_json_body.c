// SPDX-License-Identifier: Apache-2.0
// JSON bodies of the HTTP API: parsing, the fields of a generation, and the bodies of the Responses API and of the
// Messages API on their way to /v1/chat/completions. A refused body has a sentence, an accepted body has turns.
#include <stdlib.h>
#include <string.h>

#include "router/front/http/json_anthropic.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_custom_input.h"
#include "router/front/http/json_generation.h"
#include "router/front/http/json_images.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_responses_answer.h"
#include "router/front/http/json_writer.h"
#include "tests/fuzz/fuzz.h"

static void check_refusal(enum status status)
{
    FUZZ_CHECK(status == STATUS_INVALID || status == STATUS_UNSUPPORTED);
    FUZZ_CHECK(*status_message());
}

static void read_generation(const json_t *body)
{
    struct json_generation g;
    enum status status = json_generation_read(body, &g);
    if (status == STATUS_OK) status = json_generation_finish(&g);
    if (status == STATUS_OK) {
        FUZZ_CHECK(g.n >= 1 && g.n <= JSON_CHOICES_MAX);
        FUZZ_CHECK(g.sampling.temperature >= 0 && g.sampling.top_p > 0);
        FUZZ_CHECK(g.sampling_options.n_logit_bias <= LOGIT_BIAS_TOKENS_MAX);
    } else {
        check_refusal(status);
    }
    json_generation_fini(&g);
}

static void check_turns(const json_t *chat)
{
    const json_t *turns = json_object_get(chat, "messages");
    FUZZ_CHECK(json_array_size(turns) > 0);
    size_t i;
    json_t *turn;
    json_array_foreach(turns, i, turn)
    {
        const json_t *content = json_object_get(turn, "content");
        FUZZ_CHECK(json_is_string(json_object_get(turn, "role")));
        const bool calls_only = json_is_null(content) && json_array_size(json_object_get(turn, "tool_calls"));
        FUZZ_CHECK(json_is_string(content) || json_is_array(content) || calls_only);
    }
}

static void check_chat(enum status status, json_t *chat)
{
    if (status == STATUS_OK) {
        check_turns(chat);
        read_generation(chat);
        json_decref(chat);
    } else {
        check_refusal(status);
        FUZZ_CHECK(!chat);
    }
}

// Every name that the model may call leads back to the client's tool.
static void check_tools(const struct responses_tools *tools)
{
    const char *offered;
    json_t *tool, *type;
    size_t i;
    json_object_foreach(tools->renamed, offered, tool)
    {
        const char *space = json_string_value(json_object_get(tool, "namespace"));
        char *name = responses_offered_name(space, json_string_value(json_object_get(tool, "name")));
        FUZZ_CHECK(strcmp(name, offered) == 0);
        free(name);
    }
    json_array_foreach(tools->left_out, i, type) FUZZ_CHECK(!strpbrk(json_string_value(type), "\r\n,"));
}

static void check_echo(const json_t *body)
{
    char *echo = responses_echo(body);
    struct bytes object = {0};
    JSON_ADD(&object, "{\"id\":1");
    json_add(&object, echo);
    JSON_ADD(&object, "}");
    json_t *parsed = json_loadb(object.data, object.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(parsed);
    json_decref(parsed);
    bytes_free(&object);
    free(echo);
}

static struct bytes input_decode(const char *arguments, size_t n, size_t piece)
{
    struct custom_input state = {0};
    struct bytes text = {0};
    for (size_t i = 0; i < n; i += piece)
        custom_input_push(&state, arguments + i, n - i < piece ? n - i : piece, &text);
    custom_input_finish(&state, &text);
    return text;
}

// The bytes as the arguments of a custom tool: pieces of any size give the same text, which is that of a JSON parser.
static void check_custom_input(const char *arguments, size_t n)
{
    struct bytes whole = input_decode(arguments, n, n + 1), pieces = input_decode(arguments, n, 1 + n % 5);
    FUZZ_CHECK(whole.n == pieces.n && (!whole.n || memcmp(whole.data, pieces.data, whole.n) == 0));
    json_t *object = json_loadb(arguments, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    const json_t *input = json_object_get(object, "input");
    if (json_is_string(input) && json_object_size(object) == 1 && n < CUSTOM_HEAD_BYTES_MAX &&
        memmem(arguments, n, "\"input\"", 7)) {
        FUZZ_CHECK(whole.n == json_string_length(input));
        FUZZ_CHECK(!whole.n || memcmp(whole.data, json_string_value(input), whole.n) == 0);
    }
    json_decref(object);
    bytes_free(&whole);
    bytes_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body = NULL, *chat = NULL;
    check_custom_input((const char *)data, size);
    enum status status = json_body_parse((const char *)data, size, &body);
    if (status != STATUS_OK) {
        check_refusal(status);
        return 0;
    }
    if (size / 4 % 2) json_images_replace(body, "[image]");
    read_generation(body);
    check_echo(body);
    struct responses_tools tools = {0};
    status = responses_to_chat(body, size % 2, &tools, &chat);
    check_tools(&tools);
    check_chat(status, chat);
    responses_tools_fini(&tools);
    chat = NULL;
    const struct anthropic_options options = {.counted = size % 2, .system_turns = size / 2 % 2};
    status = anthropic_to_chat(body, &options, &chat);
    check_chat(status, chat);
    json_decref(body);
    return 0;
}
