// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_generation_reader.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/text/grammar_message.h"
#include "lib/text/tool_grammar.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/http/http_resume.h"
#include "router/front/http/json_unknown.h"
#include "router/front/request/answer_resume.h"
#include "router/front/request/intake.h"
#include "router/front/request/request_trace.h"

// Limits of one message, over all its choices.
enum {
    ANSWERS_MAX = 1024,
    PROMPT_TOKENS_MAX = 16 << 20, // each choice has a copy of its prompt
    ECHO_MB_MAX = 32,             // MiB of echoed prompts; each choice has a copy of its prompt
};

static void set_prompt(Forepack__V1__GenerateRequest *m, const struct http_prompt *prompt)
{
    m->text = (ProtobufCBinaryData){prompt->text_bytes, (uint8_t *)prompt->text};
    m->token_ids = prompt->ids;
    m->n_token_ids = prompt->n_ids;
}

// Returns the name that the client gives the request in each attempt, or NULL.
static const char *retry_name(const struct http_generation *g)
{
    const char *key = http_header(g->x, "idempotency-key");
    return key ? key : http_header(g->x, "x-request-id");
}

// Reads the request of choice `index` into `a`. `of_prompt` is the answer of the first choice of the same prompt; NULL
// if this is `a` itself. `first` is the first answer of the message, which may be `a`.
static enum status answer_read(struct http_generation *g, struct http_input *in, const struct answer *of_prompt,
                               const struct answer *first, int index, struct answer *a)
{
    Forepack__V1__GenerateRequest *m = &in->fields.message;
    a->index = index;
    if (of_prompt) {
        a->text = wire_request_copy_choice(of_prompt->request, of_prompt->text, index % g->n, a->request);
        if (!in->echo_logprobs) a->request->spec.sampling.prompt_logprobs = -1; // only the first choice reports them
        a->request->score_with = of_prompt->request->number;
        return STATUS_OK;
    }
    char id[HTTP_ID_ROOM + 16];
    snprintf(id, sizeof id, index ? "%s-p%d" : "%s", g->id, index / g->n);
    m->request_id = id;
    const char *retry = retry_name(g);
    char *retry_id = retry ? mem_format("%s-p%d", retry, index / g->n) : NULL;
    const struct http_prompt *prompt = &in->prompts[index / g->n];
    set_prompt(m, prompt);
    const struct wire_options options = {.default_tokens = in->default_tokens,
                                         .conversation = prompt->conversation,
                                         .text_given = prompt->text != NULL,
                                         .ids_field = "prompt",
                                         .max_tokens_name = in->max_tokens_name,
                                         .context = {.words = g->api->context_words, .reduces = true},
                                         .retry_id = retry_id,
                                         .grammar_valid = in->grammar_known || index > 0,
                                         .text_of_other = first->text};
    enum status status = wire_request_read(&g->client, m, &options, a->request, &a->text);
    free(retry_id);
    return status;
}

// `tools` has the names of the tools (chat_tool_names()).
static void answer_split(struct http_generation *g, const struct http_input *in, const json_t *tools, struct answer *a)
{
    const struct front *front = g->client.front;
    const struct chat_syntax *syntax = &front->chat_syntax;
    const struct request_spec *spec = &a->request->spec;
    if (!in->sections || (!syntax->output.reasoning_begin && !tools)) return;
    // With n = 0 the answer never starts inside a reasoning that the prompt begins. A grammar applies from the first
    // token on, so the answer cannot continue that reasoning.
    int n = spec->sampling.grammar.kind == GRAMMAR_NONE ? spec->n_tokens : 0;
    g->choices[a->index].chat = chat_answer_create(syntax, front->tokenizer, spec->tokens, n, tools, in->single_call);
    text_stream_show(a->text, syntax->shown, syntax->n_shown);
}

// Stores the text of a checked prompt in *echo. Adds the bytes of the copies for all choices to *total_p.
static enum status echo_prompt(struct http_generation *g, const struct http_prompt *prompt, struct bytes *echo,
                               size_t *total_p)
{
    const char *text = prompt->text;
    char *decoded = NULL;
    size_t n = prompt->text_bytes;
    if (prompt->n_ids) {
        TRY(tokenizer_decode(g->client.front->tokenizer, (const int32_t *)prompt->ids, (int)prompt->n_ids,
                             TOKENIZER_SKIP_SPECIAL, &decoded, &n));
        text = decoded;
    }
    *total_p += n * (size_t)g->n;
    bool fits = *total_p <= (size_t)ECHO_MB_MAX << 20;
    if (fits) bytes_add(echo, text, n);
    free(decoded);
    if (fits) return STATUS_OK;
    return status_fail(STATUS_INVALID, "echo: the prompts of all choices have over %d MiB: send fewer per request",
                       ECHO_MB_MAX);
}

static enum status echo_prompts(struct http_generation *g, const struct http_input *in)
{
    size_t total_bytes = 0;
    g->echoes = mem_alloc_array((size_t)in->n_prompts, sizeof *g->echoes);
    for (int i = 0; i < in->n_prompts; i++)
        TRY(echo_prompt(g, &in->prompts[i], &g->echoes[i], &total_bytes));
    return STATUS_OK;
}

// Creates the answers of all choices with their requests, linked by `next`.
static enum status answers_read(struct http_generation *g, struct http_input *in, const json_t *tools,
                                const struct http_message *message, struct answer **first_p)
{
    struct answer **end = first_p, *of_prompt = NULL;
    int64_t prompt_tokens = 0;
    for (int i = 0; i < g->n_choices; i++) {
        struct answer *a = answer_create(message->user, message->arrived_us);
        *end = a;
        end = &a->next;
        if (i % g->n == 0) of_prompt = NULL;
        TRY(answer_read(g, in, of_prompt, *first_p, i, a));
        answer_split(g, in, tools, a);
        const Forepack__V1__Resume *resume = in->fields.message.resume;
        if (resume) TRY(answer_resume(a, resume->token_ids, resume->n_token_ids, resume->received_tokens));
        if (in->echo_logprobs) g->api->echo_begin(g, &g->choices[i], a->request->spec.tokens[0]);
        if (!of_prompt) of_prompt = a;
        prompt_tokens += a->request->spec.n_tokens;
        if (prompt_tokens > PROMPT_TOKENS_MAX)
            return status_fail(STATUS_INVALID, "n: the prompts of all choices have over %d tokens", PROMPT_TOKENS_MAX);
    }
    return STATUS_OK;
}

static enum status choices_create(struct http_generation *g, const struct http_input *in)
{
    int64_t n = (int64_t)in->fields.n * in->n_prompts;
    if (n > ANSWERS_MAX) {
        return status_fail(STATUS_INVALID, "prompt: %d prompts with n %d are %lld choices, at most %d are allowed",
                           in->n_prompts, in->fields.n, (long long)n, ANSWERS_MAX);
    }
    g->n_choices = g->n_left = (int)n;
    g->choices = mem_alloc_array((size_t)n, sizeof *g->choices);
    for (int i = 0; i < g->n_choices; i++)
        g->choices[i].index = i;
    return STATUS_OK;
}

static void set_fields(struct http_generation *g, struct http_input *in)
{
    struct json_generation *fields = &in->fields;
    g->stream = fields->stream;
    g->include_usage = fields->include_usage;
    g->continuous_usage = fields->continuous_usage;
    g->return_token_ids = fields->return_token_ids;
    g->return_kept = fields->prefill_options.return_kept;
    g->echo_logprobs = in->echo_logprobs;
    g->prompt_logprobs = fields->sampling.prompt_logprobs >= 0 && !in->echo_logprobs;
    g->asked_tokens = fields->sampling.max_tokens;
    g->n = fields->n;
    g->data = in->data;
    in->data = (struct http_data){0};
}

// Sets the grammar of a request with tools. If the request requires a call, the answer consists of calls. If it has a
// response_format, the answer is in this format or consists of calls.
static enum status calls_read(const struct front *front, struct http_input *in)
{
    struct grammar_spec *grammar = &in->fields.sampling.grammar;
    const bool optional = in->tools && !in->required_call && in->formatted;
    if ((!in->required_call && !optional) || !front->chat) return STATUS_OK;
    const enum output_calls form = front->chat_syntax.output.calls;
    if (grammar->kind != GRAMMAR_NONE && !in->formatted)
        return status_fail(STATUS_INVALID, "tool_choice: a required call cannot be combined with structured output, "
                                           "except response_format");
    if (optional && form == OUTPUT_CALLS_NONE) return STATUS_OK; // requests_read() refuses the tools
    const struct tool_choice choice = {in->tools, in->required_tool, in->single_call || in->required_tool,
                                       front->close_schemas, optional ? grammar->text : NULL};
    struct grammar_spec calls;
    TRY(tool_grammar_create(form, front->chat_syntax.call_marker, &choice, &calls));
    grammar_spec_free(grammar);
    *grammar = calls;
    grammar_to_message(grammar, &in->fields.sampling_options);
    return STATUS_OK;
}

static enum status body_read(struct http_generation *g, const struct http_message *message, struct http_input *in,
                             json_t **body_p)
{
    TRY(http_message_parse(message, body_p));
    TRY(g->api->read(*body_p, in));
    TRY(json_generation_finish(&in->fields));
    json_unknown_log(g->api->method, g->api->knows, *body_p);
    TRY(calls_read(g->client.front, in));
    TRY(http_resume_read(g, in));
    in->grammar_known = wire_grammar_known(g->client.front, &in->fields.message);
    return STATUS_OK;
}

// Tokenises the prompts and stores the parsed fields.
static enum status requests_read(struct http_generation *g, const struct http_message *message, struct http_input *in,
                                 struct answer **first_p)
{
    if (in->tools && g->client.front->chat && g->client.front->chat_syntax.output.calls == OUTPUT_CALLS_NONE)
        return status_fail(STATUS_UNSUPPORTED,
                           "tools: the model's chat template has no form of tool calls that is supported (Llama 3's, "
                           "Hermes', Mistral's): leave them out");
    set_fields(g, in);
    if (g->prompt_logprobs && (g->stream || !g->api->add_prompt_logprobs))
        return status_fail(STATUS_UNSUPPORTED, "prompt_logprobs: not supported %s: leave it out",
                           g->stream ? "with stream" : "by this API");
    TRY(client_check(&g->client, in->fields.message.tenant, in->fields.message.priority));
    TRY(intake_check_model(g->client.front, in->fields.message.model));
    TRY(choices_create(g, in));
    json_t *tools = chat_tool_names(in->tools);
    enum status status = answers_read(g, in, tools, message, first_p);
    json_decref(tools);
    TRY(status);
    if (in->echo) TRY(echo_prompts(g, in));
    return answers_reserve(*first_p, &in->retry_us);
}

void http_generation_refuse(struct parsed_message *parsed, struct answer *first, enum status status, int64_t retry_us,
                            int64_t arrived_us)
{
    struct http_generation *g = (struct http_generation *)parsed->client;
    client_trace_refused(&g->client, first, status, arrived_us);
    answers_free(first);
    client_refused(&g->client, g->id, status);
    http_refuse_until(g->x, status, retry_us);
    client_not_submitted(parsed);
}

// Logs the x-request-id that the client sent with an accepted request. Refused requests are not logged here, because
// any client can send many.
static void log_name(const struct http_generation *g)
{
    const char *name = http_header(g->x, "x-request-id");
    if (name) log_event(LOG_INFO, "request_named", LOG_FIELD("client_id", g->id), LOG_FIELD("x_request_id", name));
}

void http_generation_read(const struct http_message *message)
{
    struct parsed_message *parsed = message->user;
    struct http_generation *g = (struct http_generation *)parsed->client;
    if (message->dropped) {
        client_dropped(parsed, message->arrived_us);
        return;
    }
    struct http_input in = {.system_turns = g->client.front->system_turns};
    json_t *body = NULL;
    struct answer *first = NULL;
    enum status status = body_read(g, message, &in, &body);
    bool later = status == STATUS_OK && message->at_once && !in.grammar_known;
    if (status == STATUS_OK && !later) status = requests_read(g, message, &in, &first);
    http_input_fini(&in); // does not change status_message()
    if (later) {
        status = http_message_postpone(message, body);
        if (status == STATUS_OK) return;
    } else {
        json_decref(body);
    }
    if (status == STATUS_OK) {
        log_name(g);
        answers_submit(first, g->api->method);
    } else {
        http_generation_refuse(parsed, first, status, in.retry_us, message->arrived_us);
    }
}
