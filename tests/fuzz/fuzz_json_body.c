// SPDX-License-Identifier: Apache-2.0
// JSON bodies of the HTTP API: parsing, the fields of a generation, and the bodies of the Responses API and of the
// Messages API on their way to /v1/chat/completions. A refused body has a sentence, an accepted body has turns.
#include <stdlib.h>
#include <string.h>

#include "router/front/http/json_anthropic.h"
#include "router/front/http/json_body.h"
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
        FUZZ_CHECK(json_is_string(content) || json_is_array(content));
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body = NULL, *chat = NULL;
    enum status status = json_body_parse((const char *)data, size, &body);
    if (status != STATUS_OK) {
        check_refusal(status);
        return 0;
    }
    if (size / 4 % 2) json_images_replace(body, "[image]");
    read_generation(body);
    check_echo(body);
    status = responses_to_chat(body, &chat);
    check_chat(status, chat);
    chat = NULL;
    const struct anthropic_options options = {.counted = size % 2, .system_turns = size / 2 % 2};
    status = anthropic_to_chat(body, &options, &chat);
    check_chat(status, chat);
    json_decref(body);
    return 0;
}
