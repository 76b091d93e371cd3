// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_generation.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/text/grammar_message.h"
#include "lib/text/tool_grammar.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/grpc/wire_response.h"
#include "router/front/request/intake.h"
#include "router/front/request/request_trace.h"

enum { ANSWERS_MAX = 1024 };           // of one exchange
enum { PROMPT_TOKENS_MAX = 16 << 20 }; // of all its answers: each has a copy of its prompt
enum { ECHO_MB_MAX = 32 };             // of all its answers, likewise
enum { SCRATCH_KEPT_BYTES = 1 << 20 }; // after a whole answer

// --- memory of an input

struct http_memory {
    struct http_memory *next;
    max_align_t bytes[];
};

void *http_input_alloc(struct http_input *in, size_t count, size_t size_bytes)
{
    struct http_memory *memory = mem_alloc_array(count + 1, size_bytes + sizeof *memory);
    memory->next = in->memory;
    in->memory = memory;
    return memory->bytes;
}

void http_input_fini(struct http_input *in)
{
    for (struct http_memory *memory = in->memory, *next; memory; memory = next) {
        next = memory->next;
        free(memory);
    }
    json_generation_fini(&in->fields);
    if (in->data.free) in->data.free(in->data.value);
    json_decref(in->translated);
}

// --- core's thread: sending

static void stream_send(struct http_generation *g, const struct bytes *events)
{
    g->sent_us = clock_now_us();
    http_stream_send(g->x, events->data, events->n);
}

static void prefill_headers_add(struct http_generation *g)
{
    char number[24];
    snprintf(number, sizeof number, "%d", g->usage.prompt_tokens);
    http_add_header(g->x, "x-forepack-prompt-tokens", number);
    snprintf(number, sizeof number, "%d", g->usage.kept_tokens);
    http_add_header(g->x, "x-forepack-kept-tokens", number);
    http_add_header(g->x, "x-forepack-prefill", g->prefill);
    snprintf(number, sizeof number, "%.4g", g->keep_rate);
    http_add_header(g->x, "x-forepack-keep-rate", number);
    http_add_header(g->x, "x-forepack-prefill-reason", g->prefill_reason);
}

static void stream_begin(struct http_generation *g)
{
    if (g->begun) return;
    g->begun = true;
    if (g->prefill[0] && g->n_choices == g->n) prefill_headers_add(g);
    http_add_header(g->x, "Cache-Control", "no-cache");
    http_add_header(g->x, "X-Accel-Buffering", "no");
    http_stream_begin(g->x, 200, "text/event-stream; charset=utf-8");
    if (!g->api->begin) return;
    for (int i = 0; i < g->n_choices; i++)
        g->api->begin(g, &g->choices[i], &g->streams->scratch);
}

static struct bytes *scratch_of(struct http_generation *g)
{
    g->streams->scratch.n = 0;
    return &g->streams->scratch;
}

// --- core's thread: the list of streams

static void streams_remove(struct http_generation *g)
{
    if (g->previous) {
        g->previous->next = g->next;
    } else if (g->streams->first == g) {
        g->streams->first = g->next;
    }
    if (g->next) g->next->previous = g->previous;
    g->previous = g->next = NULL;
}

void http_streams_ping(struct http_streams *streams, int64_t now_us)
{
    static const char ping[] = ": ping\n\n";
    for (struct http_generation *g = streams->first; g; g = g->next) {
        if (now_us - g->sent_us < streams->ping_after_us) continue;
        struct bytes *out = scratch_of(g);
        stream_begin(g);
        bytes_add(out, ping, sizeof ping - 1);
        stream_send(g, out);
    }
}

static void streams_add(struct http_generation *g)
{
    g->next = g->streams->first;
    if (g->next) g->next->previous = g;
    g->streams->first = g;
}

// --- core's thread: the end

static int echo_count(const struct http_generation *g)
{
    return g->echoes ? g->n_choices / g->n : 0;
}

static void choice_fini(struct http_choice *choice)
{
    chat_answer_free(choice->chat);
    bytes_free(&choice->text);
    for (int i = 0; i < HTTP_LOGPROB_LISTS; i++)
        bytes_free(&choice->logprobs[i]);
    bytes_free(&choice->prompt_logprobs);
    bytes_free(&choice->token_ids);
    bytes_free(&choice->kept);
}

// What the answer has taken so far. It may be called again.
static void generation_drop_output(struct http_generation *g)
{
    whole_answer_free(g->streams->whole, &g->collected_bytes);
    for (int i = 0; i < echo_count(g); i++)
        bytes_free(&g->echoes[i]);
    free(g->echoes);
    g->echoes = NULL;
    for (int i = 0; i < g->n_choices; i++)
        choice_fini(&g->choices[i]);
    free(g->choices);
    g->choices = NULL;
    g->n_choices = 0;
}

// The client may leave the end of its answer unread, but it holds no memory beyond that.
static void generation_end(struct http_generation *g)
{
    g->ended = true;
    if (g->stream) streams_remove(g);
    generation_drop_output(g);
}

static void generation_fail(struct http_generation *g, enum status status, const char *message)
{
    if (g->begun) {
        struct bytes *out = scratch_of(g);
        g->api->fail(g, status, message, out);
        stream_send(g, out);
        http_stream_end(g->x);
    } else {
        http_fail(g->x, status, message);
    }
    generation_end(g);
}

// The echoes count from here on, since a request may wait for long.
static void generation_submitted(struct client *client)
{
    struct http_generation *g = (struct http_generation *)client;
    size_t echo_bytes = 0;
    g->sent_us = clock_now_us();
    if (g->stream) streams_add(g);
    for (int i = 0; i < echo_count(g); i++)
        echo_bytes += g->echoes[i].n;
    if (!whole_answer_grow(g->streams->whole, &g->collected_bytes, echo_bytes))
        generation_fail(g, STATUS_EXHAUSTED, status_message());
}

// --- core's thread: answers

struct parts {
    struct http_generation *g;
    struct http_choice *choice;
    struct bytes *out; // of a stream
};

static void part_collect(struct http_choice *choice, enum output_kind kind, struct chat_call *call, const char *text,
                         size_t n)
{
    struct bytes *const to[] = {[OUTPUT_REASONING] = &choice->chat->reasoning,
                                [OUTPUT_CONTENT] = &choice->text,
                                [OUTPUT_CALL] = call ? &call->name : NULL,
                                [OUTPUT_ARGUMENTS] = call ? &call->arguments : NULL};
    bytes_add(to[kind], text, n);
    if (kind != OUTPUT_CONTENT) choice->chat->collected += n + (kind == OUTPUT_CALL ? sizeof *call : 0);
}

// The log-probabilities of the tokens of a part, which was just sent or collected.
static void content_logprobs_add(const struct parts *p, size_t text_bytes)
{
    struct chat_answer *chat = p->choice->chat;
    size_t begin = output_parser_used(chat->parser);
    int n = content_tokens_take(&chat->tokens, begin, begin + text_bytes);
    const struct answer_chunk tokens = {.logprobs = chat->tokens.taken, .n = n};
    if (!n) return;
    if (p->g->stream)
        p->g->api->chunk(p->g, p->choice, &tokens, p->out);
    else
        p->g->api->add_logprobs(p->g, p->choice, &tokens, p->choice->logprobs);
}

static void part_add(void *user, enum output_kind kind, const char *text, size_t n)
{
    const struct parts *p = user;
    struct chat_call *call = kind == OUTPUT_CALL        ? chat_answer_add_call(p->choice->chat)
                             : kind == OUTPUT_ARGUMENTS ? chat_answer_last_call(p->choice->chat)
                                                        : NULL;
    if (!call && (kind == OUTPUT_CALL || kind == OUTPUT_ARGUMENTS)) return;
    if (p->g->stream) {
        p->g->api->part(p->g, p->choice, kind, call, text, n, p->out);
    } else {
        part_collect(p->choice, kind, call, text, n);
    }
    if (kind == OUTPUT_CONTENT) content_logprobs_add(p, n);
}

// Whether the log-probabilities of the chunk are those of the content alone.
static bool content_only(const struct parts *p, const struct answer_chunk *chunk)
{
    return chunk->logprobs && p->g->api->content_logprobs;
}

// Splits the text of a chunk, token by token where it matters which of them are content.
static void split_chunk(struct parts *p, const struct answer_chunk *chunk)
{
    struct chat_answer *chat = p->choice->chat;
    size_t begin = 0;
    for (int i = 0; i < chunk->n && content_only(p, chunk); i++) {
        size_t size = chunk->ends[i] - begin;
        content_tokens_add(&chat->tokens, &chunk->logprobs[i], size);
        output_parser_push(chat->parser, chunk->text + begin, size, part_add, p);
        content_tokens_decide(&chat->tokens, output_parser_used(chat->parser));
        begin = chunk->ends[i];
    }
    content_tokens_add_text(&chat->tokens, chunk->text_bytes - begin);
    output_parser_push(chat->parser, chunk->text + begin, chunk->text_bytes - begin, part_add, p);
}

static size_t collected_bytes(const struct http_generation *g, const struct http_choice *choice)
{
    // All choices of a prompt repeat the log-probabilities that the first one collects.
    size_t n = choice->text.n + choice->token_ids.n + choice->prompt_logprobs.n * (size_t)g->n;
    if (choice->chat)
        n += choice->chat->collected + output_parser_held(choice->chat->parser) +
             (size_t)choice->chat->tokens.n * sizeof *choice->chat->tokens.waiting;
    for (int i = 0; i < HTTP_LOGPROB_LISTS; i++)
        n += choice->logprobs[i].n;
    return n;
}

// What the choice's text still has to start with. Borrowed.
static struct bytes echo_left(const struct http_generation *g, const struct http_choice *choice)
{
    return g->echoes && !choice->echoed ? g->echoes[choice->index / g->n] : (struct bytes){0};
}

// False: there is too much, with the reason.
static bool collect_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk)
{
    const size_t before = collected_bytes(g, choice);
    const struct bytes echo = echo_left(g, choice);
    struct parts parts = {g, choice, NULL};
    if (echo.n) bytes_add(&choice->text, echo.data, echo.n);
    choice->echoed = true;
    if (choice->chat) {
        split_chunk(&parts, chunk);
    } else {
        bytes_add(&choice->text, chunk->text, chunk->text_bytes);
    }
    bool added = choice->chat && content_only(&parts, chunk);
    if ((chunk->logprobs || g->echo_logprobs) && !added) g->api->add_logprobs(g, choice, chunk, choice->logprobs);
    if (chunk->n_prompt_logprobs && g->prompt_logprobs) g->api->add_prompt_logprobs(g, choice, chunk);
    if (g->return_token_ids) http_token_ids_add(&choice->token_ids, chunk);
    return whole_answer_grow(g->streams->whole, &g->collected_bytes, collected_bytes(g, choice) - before);
}

// A choice's event needs text, or something that each token has.
static bool has_content(const struct http_generation *g, const struct http_choice *choice,
                        const struct answer_chunk *chunk)
{
    return chunk->text_bytes || echo_left(g, choice).n || chunk->n_prompt_logprobs ||
           (chunk->n && (chunk->logprobs || g->return_token_ids));
}

// Streams the parts that a chunk makes certain, and the log-probabilities and ids of its tokens.
static void stream_parts(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes *out)
{
    struct parts parts = {g, choice, out};
    split_chunk(&parts, chunk);
    struct answer_chunk tokens = *chunk;
    tokens.text_bytes = 0;
    if (content_only(&parts, chunk)) tokens.logprobs = NULL;
    if (has_content(g, choice, &tokens)) g->api->chunk(g, choice, &tokens, out);
}

static void stream_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         struct bytes *out)
{
    if (!has_content(g, choice, chunk)) return;
    if (choice->chat) {
        stream_parts(g, choice, chunk, out);
        return;
    }
    const struct bytes echo = echo_left(g, choice);
    choice->echoed = true;
    if (!echo.n) {
        g->api->chunk(g, choice, chunk, out);
        return;
    }
    struct bytes text = {0};
    bytes_add(&text, echo.data, echo.n);
    bytes_add(&text, chunk->text, chunk->text_bytes);
    struct answer_chunk whole = *chunk;
    whole.text = text.data;
    whole.text_bytes = text.n;
    g->api->chunk(g, choice, &whole, out);
    bytes_free(&text);
}

// A worker group that lies may report any number of drafted tokens.
static void count_add(int *sum, int more)
{
    *sum = more < INT_MAX - *sum ? *sum + more : INT_MAX;
}

// Adds what the answer has used since the last call: prompts once, outputs of all choices.
static void usage_update(struct http_generation *g, struct http_choice *choice, const struct request *r, int n_tokens)
{
    struct request_usage now = r->usage, *before = &choice->counted, *sum = &g->usage;
    now.completion_tokens = n_tokens;
    if (choice->index == 0) {
        wire_prefill_format(r, g->prefill);
        g->keep_rate = r->keep_rate;
        g->prefill_reason = request_rate_reason(r);
    }
    sum->completion_tokens += now.completion_tokens - before->completion_tokens;
    sum->replays += now.replays - before->replays;
    count_add(&sum->draft_tokens, now.draft_tokens - before->draft_tokens);
    count_add(&sum->draft_accepted_tokens, now.draft_accepted_tokens - before->draft_accepted_tokens);
    if (choice->index % g->n == 0) {
        sum->prompt_tokens += now.prompt_tokens - before->prompt_tokens;
        sum->scored_tokens += now.scored_tokens - before->scored_tokens;
        sum->score_cached_tokens += now.score_cached_tokens - before->score_cached_tokens;
        sum->kept_tokens += now.kept_tokens - before->kept_tokens;
        sum->cached_tokens += now.cached_tokens - before->cached_tokens;
        sum->frozen_tokens += now.frozen_tokens - before->frozen_tokens;
        sum->recalled_tokens += now.recalled_tokens - before->recalled_tokens;
    }
    *before = now;
}

// Without its new tokens if the answer is the echo of the prompt alone.
static struct answer_chunk chunk_shown(const struct http_generation *g, const struct answer_chunk *chunk)
{
    if (!g->no_tokens) return *chunk;
    return (struct answer_chunk){.prompt_logprobs = chunk->prompt_logprobs,
                                 .n_prompt_logprobs = chunk->n_prompt_logprobs};
}

static void generation_chunk(struct answer *a, const struct answer_chunk *received)
{
    struct http_generation *g = (struct http_generation *)a->client;
    if (g->ended) return;
    struct http_choice *choice = &g->choices[a->index];
    const struct answer_chunk shown = chunk_shown(g, received), *chunk = &shown;
    if (!g->stream) {
        if (!collect_chunk(g, choice, chunk)) generation_fail(g, STATUS_EXHAUSTED, status_message());
        return;
    }
    struct bytes *out = scratch_of(g);
    usage_update(g, choice, a->request, g->no_tokens ? 0 : a->n_tokens);
    stream_begin(g);
    stream_chunk(g, choice, chunk, out);
    stream_send(g, out);
}

static void choice_end(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    struct parts parts = {g, choice, out};
    if (choice->chat) output_parser_finish(choice->chat->parser, part_add, &parts);
    if (g->stream) g->api->finish(g, choice, out);
    if (--g->n_left) return;
    if (g->stream) {
        if (g->api->end) g->api->end(g, out);
    } else {
        prefill_headers_add(g);
        g->api->whole(g, out);
    }
}

static void kept_add(struct http_choice *choice, const struct request *r)
{
    struct token_range *sorted;
    int n = request_sort_kept(r, &sorted);
    http_ranges_add(&choice->kept, sorted, n);
    free(sorted);
}

static void generation_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                            const char *message)
{
    struct http_generation *g = (struct http_generation *)a->client;
    if (g->ended) return;
    if (reason == FINISH_REASON_ERROR || reason == FINISH_REASON_CANCELLED) {
        generation_fail(g, status, message);
        return;
    }
    struct http_choice *choice = &g->choices[a->index];
    struct answer_chunk rest = answer_rest(a);
    rest = chunk_shown(g, &rest);
    struct bytes *out = scratch_of(g);
    usage_update(g, choice, r, g->no_tokens ? 0 : r->usage.completion_tokens);
    choice->reason = g->no_tokens ? FINISH_REASON_LENGTH : reason;
    choice->stop = a->stop;
    if (g->return_kept && r->kept) kept_add(choice, r);
    if (g->stream) {
        stream_begin(g);
        stream_chunk(g, choice, &rest, out);
    } else {
        collect_chunk(g, choice, &rest);
    }
    choice_end(g, choice, out);
    if (g->stream) stream_send(g, out);
    if (g->n_left) return;
    if (g->stream) {
        http_stream_end(g->x);
    } else {
        http_answer(g->x, out);
        if (out->capacity > SCRATCH_KEPT_BYTES) bytes_free(out);
    }
    generation_end(g);
}

static void generation_free(struct client *client)
{
    struct http_generation *g = (struct http_generation *)client;
    if (g->stream && !g->ended) streams_remove(g);
    generation_drop_output(g);
    if (g->data.free) g->data.free(g->data.value);
    principal_unref(client->principal);
    http_unref(g->x);
    free(g);
}

static const struct client_ops generation_ops = {
    .submitted = generation_submitted, .chunk = generation_chunk, .done = generation_done, .free = generation_free};

// --- where the body is read

static void set_prompt(Forepack__V1__GenerateRequest *m, const struct http_prompt *prompt)
{
    m->text = (ProtobufCBinaryData){prompt->text_bytes, (uint8_t *)prompt->text};
    m->token_ids = prompt->ids;
    m->n_token_ids = prompt->n_ids;
}

// `of_prompt`: the answer of the first choice for the prompt; NULL: this is it. `first`: that of the message, which
// this may be.
static enum status read_answer(struct http_generation *g, struct http_input *in, const struct answer *of_prompt,
                               const struct answer *first, int index, struct answer *a)
{
    Forepack__V1__GenerateRequest *m = &in->fields.message;
    a->index = index;
    if (of_prompt) {
        a->text = wire_request_copy_choice(of_prompt->request, of_prompt->text, index % g->n, a->request);
        if (!in->echo_logprobs) a->request->spec.sampling.prompt_logprobs = -1; // those of the first choice are shown
        a->request->score_with = of_prompt->request->number;
        return STATUS_OK;
    }
    char id[HTTP_ID_ROOM + 16];
    snprintf(id, sizeof id, index ? "%s-p%d" : "%s", g->id, index / g->n);
    m->request_id = id;
    const struct http_prompt *prompt = &in->prompts[index / g->n];
    set_prompt(m, prompt);
    const struct wire_options options = {in->default_tokens,  prompt->conversation,           "prompt",
                                         in->max_tokens_name, in->grammar_known || index > 0, first->text};
    return wire_request_read(g->client.front, m, &options, a->request, &a->text);
}

static void answer_split(struct http_generation *g, const struct http_input *in, struct answer *a)
{
    const struct front *front = g->client.front;
    const struct chat_syntax *syntax = &front->chat_syntax;
    const struct request_spec *spec = &a->request->spec;
    if (!in->sections || (!syntax->output.reasoning_begin && !in->tools)) return;
    // A grammar holds from the first token on: such an answer does not go on with reasoning that the prompt begins.
    int n = spec->sampling.grammar.kind == GRAMMAR_NONE ? spec->n_tokens : 0;
    g->choices[a->index].chat =
        chat_answer_create(syntax, front->tokenizer, spec->tokens, n, in->tools, in->single_call);
    text_stream_show(a->text, syntax->shown, syntax->n_shown);
}

// The text of a prompt that was checked. *total_p: bytes that all choices so far start with.
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

// The requests of all choices, linked by `next`.
static enum status read_answers(struct http_generation *g, struct http_input *in, const struct http_message *message,
                                struct answer **first_p)
{
    struct answer **end = first_p, *of_prompt = NULL;
    int64_t prompt_tokens = 0;
    for (int i = 0; i < g->n_choices; i++) {
        struct answer *a = answer_create(message->user, message->arrived_us);
        *end = a;
        end = &a->next;
        if (i % g->n == 0) of_prompt = NULL;
        TRY(read_answer(g, in, of_prompt, *first_p, i, a));
        answer_split(g, in, a);
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
    g->no_tokens = fields->no_tokens;
    g->n = fields->n;
    g->data = in->data;
    in->data = (struct http_data){0};
}

// A required call becomes a grammar.
static enum status read_required_call(const struct front *front, struct http_input *in)
{
    if (!in->required_call || !front->chat) return STATUS_OK;
    const struct tool_choice choice = {in->tools, in->required_tool, in->single_call || in->required_tool};
    struct grammar_spec *grammar = &in->fields.sampling.grammar;
    if (grammar->kind != GRAMMAR_NONE)
        return status_fail(STATUS_INVALID, "tool_choice: a required call cannot be combined with structured output");
    TRY(tool_grammar_create(front->chat_syntax.output.calls, front->chat_syntax.call_marker, &choice, grammar));
    grammar_to_message(grammar, &in->fields.sampling_options);
    return STATUS_OK;
}

static enum status read_body(struct http_generation *g, const struct http_message *message, struct http_input *in,
                             json_t **body_p)
{
    TRY(http_message_parse(message, body_p));
    TRY(g->api->read(*body_p, in));
    TRY(json_generation_finish(&in->fields));
    TRY(read_required_call(g->client.front, in));
    in->grammar_known = wire_grammar_known(g->client.front, &in->fields.message);
    return STATUS_OK;
}

// What takes long, and what the generation keeps.
static enum status read_requests(struct http_generation *g, const struct http_message *message, struct http_input *in,
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
    TRY(read_answers(g, in, message, first_p));
    if (in->echo) TRY(echo_prompts(g, in));
    return answers_reserve(*first_p, &in->retry_us);
}

// `first`: the answers that were created for the message, or NULL.
static void generation_refuse(struct parsed_message *parsed, struct answer *first, enum status status, int64_t retry_us,
                              int64_t arrived_us)
{
    struct http_generation *g = (struct http_generation *)parsed->client;
    client_trace_refused(&g->client, first, status, arrived_us);
    answers_free(first);
    client_refused(&g->client, g->id, status);
    http_refuse_until(g->x, status, retry_us);
    client_not_submitted(parsed);
}

// Not before the request is taken: clients choose how many they send, and each line takes space.
static void log_name(const struct http_generation *g)
{
    const char *name = http_header(g->x, "x-request-id");
    if (name) log_event(LOG_INFO, "request_named", LOG_FIELD("client_id", g->id), LOG_FIELD("x_request_id", name));
}

static void generation_read(const struct http_message *message)
{
    struct parsed_message *parsed = message->user;
    struct http_generation *g = (struct http_generation *)parsed->client;
    if (message->dropped) {
        client_dropped(parsed, message->arrived_us);
        return;
    }
    struct http_input in = {.n_prompts = 0};
    json_t *body = NULL;
    struct answer *first = NULL;
    enum status status = read_body(g, message, &in, &body);
    bool later = status == STATUS_OK && message->at_once && !in.grammar_known;
    if (status == STATUS_OK && !later) status = read_requests(g, message, &in, &first);
    http_input_fini(&in); // keeps the sentence
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
        generation_refuse(parsed, first, status, in.retry_us, message->arrived_us);
    }
}

void http_generation_start(struct http_exchange *x, const struct front *front, struct http_streams *streams,
                           const struct http_api *api)
{
    if (!http_admit(x)) return;
    struct http_call *call = http_user(x);
    struct http_generation *g = mem_alloc(sizeof *g);
    g->prefill_reason = "";
    http_ref(x);
    g->x = x;
    g->api = api;
    g->streams = streams;
    g->created_s = (int64_t)time(NULL);
    g->client.ops = &generation_ops;
    g->client.front = front;
    g->client.principal = principal_ref(call->principal);
    snprintf(g->id, sizeof g->id, "%s-%016llx", api->id_prefix, (unsigned long long)call->number);
    http_trace_open(x, &g->client);
    call->client = &g->client;
    struct parsed_message *parsed = client_message_begin(&g->client, g->id);
    enum status status = http_message_read(front, x, &parsed->waiting, generation_read, parsed);
    if (status != STATUS_OK) generation_refuse(parsed, NULL, status, 0, clock_now_us());
}

// --- for the APIs

void http_usage_add(const struct http_generation *g, struct bytes *out)
{
    const struct request_usage *u = &g->usage;
    char text[640];
    snprintf(text, sizeof text,
             "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
             "\"completion_tokens_details\":{\"accepted_prediction_tokens\":%d,\"rejected_prediction_tokens\":%d},"
             "\"scored_tokens\":%d,\"score_cached_tokens\":%d,\"kept_tokens\":%d,\"frozen_tokens\":%d,"
             "\"recalled_tokens\":%d,\"replays\":%d,\"prefill\":\"%s\","
             "\"keep_rate\":%.4g,\"prefill_reason\":\"%s\"}",
             u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens, u->cached_tokens,
             u->draft_accepted_tokens, u->draft_tokens - u->draft_accepted_tokens, u->scored_tokens,
             u->score_cached_tokens, u->kept_tokens, u->frozen_tokens, u->recalled_tokens, u->replays, g->prefill,
             g->keep_rate, g->prefill_reason);
    json_add(out, text);
}

void http_token_ids_add(struct bytes *list, const struct answer_chunk *chunk)
{
    for (int i = 0; i < chunk->n; i++) {
        json_add_comma(list);
        json_add_integer(list, chunk->tokens[i]);
    }
}

void http_ranges_add(struct bytes *list, const struct token_range *ranges, int n)
{
    char range[48];
    for (int i = 0; i < n; i++) {
        snprintf(range, sizeof range, "[%d,%d]", (int)ranges[i].first, (int)ranges[i].last);
        if (i) JSON_ADD(list, ",");
        json_add(list, range);
    }
}
