// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_responses.h"

#include <stdlib.h>
#include <time.h>

#include "lib/base/mem.h"
#include "router/front/http/http_count.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_responses_answer.h"

// Data of a generation.
struct response {
    struct responses_answer answer;
    struct responses_tools tools;
    char *echo; // owned
};

static void response_free(void *data)
{
    struct response *r = data;
    responses_answer_fini(&r->answer);
    responses_tools_fini(&r->tools);
    free(r->echo);
    free(r);
}

static enum status responses_read(const json_t *body, struct http_input *in)
{
    struct response *r = mem_alloc(sizeof *r);
    in->data = (struct http_data){r, response_free};
    TRY(responses_to_chat(body, in->system_turns, &r->tools, &in->translated));
    r->answer.echo = r->echo = responses_echo(body);
    r->answer.tools = r->tools.renamed;
    TRY(http_chat.read(in->translated, in));
    in->max_tokens_name = "max_output_tokens";
    return STATUS_OK;
}

static bool responses_field_known(const char *name)
{
    return responses_knows(name) || http_chat.knows(name);
}

static struct responses_answer *answer_of(struct http_generation *g)
{
    struct response *r = g->data.value;
    r->answer.id = g->id;
    r->answer.model = g->client.front->model_names[0];
    r->answer.created_s = g->created_s;
    return &r->answer;
}

// Adds log-probabilities in the form of chat completions.
static void responses_add_logprobs(struct http_generation *g, struct http_choice *choice,
                                   const struct answer_chunk *chunk, struct bytes lists[HTTP_LOGPROB_LISTS])
{
    http_chat.add_logprobs(g, choice, chunk, lists);
}

// Names the types of the tools that this server does not have.
static void responses_headers(struct http_generation *g)
{
    const struct response *r = g->data.value;
    struct bytes names = {0};
    size_t i;
    json_t *type;
    json_array_foreach(r->tools.left_out, i, type)
    {
        if (i) bytes_add(&names, ", ", 2);
        bytes_add(&names, json_string_value(type), json_string_length(type));
    }
    bytes_add(&names, "", 1);
    if (names.n > 1) http_add_header(g->x, "x-forepack-tools-left-out", names.data);
    bytes_free(&names);
}

static void responses_begin(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    responses_add_begin(out, answer_of(g), &g->usage);
}

static void responses_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                            struct bytes *out)
{
    struct bytes lists[HTTP_LOGPROB_LISTS] = {{0}};
    if (chunk->logprobs) responses_add_logprobs(g, choice, chunk, lists);
    responses_add_text(out, answer_of(g), chunk->text, chunk->text_bytes, lists);
    bytes_free(lists);
}

static void responses_part(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                           const struct chat_call *call, const char *text, size_t n, struct bytes *out)
{
    responses_add_part(out, answer_of(g), kind, call, text, n);
}

// `choice` is NULL if the generation failed.
static struct responses_end end_of(const struct http_generation *g, const struct http_choice *choice, const char *error)
{
    const struct chat_answer *chat = choice ? choice->chat : NULL;
    return (struct responses_end){.reason = choice ? choice->reason : FINISH_REASON_ERROR,
                                  .usage = &g->usage,
                                  .error = error,
                                  .cut = chat ? chat_answer_cut(chat) : OUTPUT_CUT_NONE,
                                  .completed_s = (int64_t)time(NULL),
                                  .explanation = &g->explanation};
}

static void responses_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    const struct responses_end end = end_of(g, choice, NULL);
    responses_add_end(out, answer_of(g), &end);
}

static void responses_fail(struct http_generation *g, enum status status, const char *message, struct bytes *out)
{
    const struct responses_end end = end_of(g, NULL, message);
    responses_add_end(out, answer_of(g), &end);
}

static void responses_whole(struct http_generation *g, struct bytes *out)
{
    struct responses_answer *a = answer_of(g);
    const struct http_choice *choice = g->choices;
    const struct responses_end end = end_of(g, choice, NULL);
    responses_set_items(a, &choice->text, choice->logprobs, choice->chat);
    responses_add_whole(out, a, &end);
}

const struct http_api http_responses = {
    .method = "responses",
    .id_prefix = "resp",
    .read = responses_read,
    .knows = responses_field_known,
    .add_logprobs = responses_add_logprobs,
    .content_logprobs = true,
    .headers = responses_headers,
    .begin = responses_begin,
    .chunk = responses_chunk,
    .part = responses_part,
    .finish = responses_finish,
    .fail = responses_fail,
    .whole = responses_whole,
};

// --- counting tokens

static enum status input_tokens_read(const json_t *body, struct http_input *in)
{
    struct responses_tools tools = {0};
    enum status status = responses_to_chat(body, in->system_turns, &tools, &in->translated);
    responses_tools_fini(&tools);
    return status == STATUS_OK ? http_chat.read(in->translated, in) : status;
}

static const struct http_count_api count_api = {.read = input_tokens_read,
                                                .object = "\"object\":\"response.input_tokens\","};

void http_input_tokens_post(struct http_exchange *x)
{
    http_count_start(x, &count_api);
}
