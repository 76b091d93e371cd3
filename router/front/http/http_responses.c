// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_responses_answer.h"

// Data of a generation.
struct response {
    struct responses_answer answer;
    char *echo; // owned
};

static void response_free(void *data)
{
    struct response *r = data;
    responses_answer_fini(&r->answer);
    free(r->echo);
    free(r);
}

static enum status responses_read(const json_t *body, struct http_input *in)
{
    TRY(responses_to_chat(body, &in->translated));
    struct response *r = mem_alloc(sizeof *r);
    r->answer.echo = r->echo = responses_echo(body);
    in->data = (struct http_data){r, response_free};
    TRY(http_chat.read(in->translated, in));
    in->max_tokens_name = "max_output_tokens";
    return STATUS_OK;
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

static void responses_begin(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    responses_add_begin(out, answer_of(g));
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

static struct responses_end end_of(const struct http_generation *g, const struct http_choice *choice)
{
    enum output_cut cut = choice->chat ? chat_answer_cut(choice->chat) : OUTPUT_CUT_NONE;
    return (struct responses_end){choice->reason, &g->usage, NULL, cut};
}

static void responses_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    struct responses_end end = end_of(g, choice);
    responses_add_end(out, answer_of(g), &end);
}

static void responses_fail(struct http_generation *g, enum status status, const char *message, struct bytes *out)
{
    responses_add_end(out, answer_of(g),
                      &(struct responses_end){FINISH_REASON_ERROR, &g->usage, message, OUTPUT_CUT_NONE});
}

static void responses_whole(struct http_generation *g, struct bytes *out)
{
    struct responses_answer *a = answer_of(g);
    const struct http_choice *choice = g->choices;
    struct responses_end end = end_of(g, choice);
    responses_set_items(a, &choice->text, choice->logprobs, choice->chat);
    responses_add_object(out, a, &end);
}

const struct http_api http_responses = {
    .method = "responses",
    .id_prefix = "resp",
    .read = responses_read,
    .add_logprobs = responses_add_logprobs,
    .content_logprobs = true,
    .begin = responses_begin,
    .chunk = responses_chunk,
    .part = responses_part,
    .finish = responses_finish,
    .fail = responses_fail,
    .whole = responses_whole,
};
