// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions.
#include <stdlib.h>
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/http_prompt.h"
#include "router/front/http/json_body.h"

enum { DEFAULT_TOKENS = 16, PROMPTS_MAX = 1024 };

// --- the body

static const struct json_unsupported unsupported[] = {
    {"suffix", "\"\"", "give the model's own markers of a gap in the prompt"},
    {"add_special_tokens", "true", "give the prompt as token ids"},
    {0},
};

struct values {
    const json_t *prompt, *logprobs;
    bool echo;
};

static const struct json_field fields[] = {
    {.name = "prompt", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, prompt)},
    {.name = "logprobs", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, logprobs)},
    {.name = "echo", .type = JSON_FIELD_BOOL, .offset = offsetof(struct values, echo)},
    {0},
};

static enum status read_prompts(const json_t *value, struct http_input *in)
{
    bool many = json_is_array(value) && !json_is_number(json_array_get(value, 0));
    size_t n = many ? json_array_size(value) : 1;
    if (!value || !n) return status_fail(STATUS_INVALID, "prompt: at least one is required");
    if (n > PROMPTS_MAX)
        return status_fail(STATUS_INVALID, "prompt: %zu given, at most %d are allowed", n, PROMPTS_MAX);
    in->prompts = http_input_alloc(in, n, sizeof *in->prompts);
    in->n_prompts = (int)n;
    for (size_t i = 0; i < n; i++)
        TRY(http_prompt_read(many ? json_array_get(value, i) : value, in, &in->prompts[i]));
    return STATUS_OK;
}

static enum status read_logprobs(const struct values *v, struct http_input *in)
{
    int n;
    if (!v->logprobs) return STATUS_OK;
    TRY(json_read_int("logprobs", v->logprobs, &n));
    TRY(json_generation_set_logprobs(&in->fields, "logprobs", n));
    if (!v->echo) return STATUS_OK;
    if (in->fields.sampling.prompt_logprobs >= 0)
        return status_fail(STATUS_INVALID,
                           "prompt_logprobs: echo with logprobs has them already: leave out one of them");
    in->echo_logprobs = true;
    json_generation_set_prompt_logprobs(&in->fields, n);
    return STATUS_OK;
}

static enum status completions_read(const json_t *body, struct http_input *in)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_generation_read(body, &in->fields));
    TRY(json_fields_read(body, fields, &v));
    TRY(read_logprobs(&v, in));
    in->echo = in->fields.allows_no_output = v.echo;
    in->default_tokens = DEFAULT_TOKENS;
    return read_prompts(v.prompt, in);
}

static bool completions_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_generation_knows(name);
}

// --- log probabilities: four lists

enum { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSET };

static int64_t count_characters(const char *text, size_t n)
{
    int64_t characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)text[i] & 0xC0) != 0x80;
    return characters;
}

// Adds an object with token texts as keys. If two tokens have the same text (such as parts of characters), the object
// has the likelier token.
static void add_top(const struct http_generation *g, const struct token_logprob *l, struct bytes *out)
{
    struct bytes names[LOGPROBS_MAX] = {{0}};
    JSON_ADD(out, "{");
    for (int t = 0; t < l->n_top; t++) {
        bool listed = false;
        openai_add_token(g, l->top_token[t], &names[t]);
        for (int other = 0; other < t && !listed; other++)
            listed = names[other].n == names[t].n && !memcmp(names[other].data, names[t].data, names[t].n);
        if (listed) continue;
        json_add_comma(out);
        bytes_add(out, names[t].data, names[t].n);
        JSON_ADD(out, ":");
        json_add_real(out, l->top_logprob[t]);
    }
    JSON_ADD(out, "}");
    for (int t = 0; t < l->n_top; t++)
        bytes_free(&names[t]);
}

// Returns how many characters the token adds to the text. Special tokens add none. The text of an echo begins without
// the blank of its first token.
static int64_t token_characters(const struct http_generation *g, const struct http_choice *choice, int32_t token)
{
    const struct tokenizer *tokenizer = g->client.front->tokenizer;
    const char *bytes;
    char *text;
    size_t n;
    if (tokenizer_is_special(tokenizer, token)) return 0;
    tokenizer_piece(tokenizer, token, &bytes, &n);
    if (!g->echo_logprobs || choice->n_characters) return count_characters(bytes, n);
    if (tokenizer_decode(tokenizer, &token, 1, 0, &text, &n) != STATUS_OK) return 0;
    int64_t characters = count_characters(text, n);
    free(text);
    return characters;
}

static void add_token(struct http_generation *g, struct http_choice *choice, int32_t token,
                      struct bytes lists[HTTP_LOGPROB_LISTS])
{
    for (int k = 0; k < HTTP_LOGPROB_LISTS && lists[TOKENS].n; k++)
        JSON_ADD(&lists[k], ",");
    openai_add_token(g, token, &lists[TOKENS]);
    json_add_integer(&lists[TEXT_OFFSET], choice->n_characters);
    choice->n_characters += token_characters(g, choice, token);
}

static void add_token_logprobs(struct http_generation *g, struct http_choice *choice, const struct token_logprob *l,
                               int n, struct bytes lists[HTTP_LOGPROB_LISTS])
{
    for (int i = 0; i < n; i++) {
        add_token(g, choice, l[i].token, lists);
        json_add_real(&lists[TOKEN_LOGPROBS], l[i].logprob);
        add_top(g, &l[i], &lists[TOP_LOGPROBS]);
    }
}

static void completions_add_logprobs(struct http_generation *g, struct http_choice *choice,
                                     const struct answer_chunk *chunk, struct bytes lists[HTTP_LOGPROB_LISTS])
{
    if (g->echo_logprobs) add_token_logprobs(g, choice, chunk->prompt_logprobs, chunk->n_prompt_logprobs, lists);
    if (chunk->logprobs) add_token_logprobs(g, choice, chunk->logprobs, chunk->n, lists);
}

static void completions_echo_begin(struct http_generation *g, struct http_choice *choice, int32_t token)
{
    add_token(g, choice, token, choice->logprobs);
    JSON_ADD(&choice->logprobs[TOKEN_LOGPROBS], "null");
    JSON_ADD(&choice->logprobs[TOP_LOGPROBS], "null");
}

static void add_logprobs_member(const struct bytes lists[HTTP_LOGPROB_LISTS], struct bytes *out)
{
    static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    JSON_ADD(out, ",\"logprobs\":{");
    for (int k = 0; k < HTTP_LOGPROB_LISTS; k++) {
        json_add_comma(out);
        json_add_string(out, keys[k]);
        JSON_ADD(out, ":[");
        bytes_add(out, lists[k].data, lists[k].n);
        JSON_ADD(out, "]");
    }
    JSON_ADD(out, "}");
}

// --- events

static void choice_begin(const struct http_choice *choice, const char *text, size_t n, struct bytes *out)
{
    JSON_ADD(out, "{\"index\":");
    json_add_integer(out, choice->index);
    JSON_ADD(out, ",\"text\":");
    json_add_text(out, text, n);
}

static void completions_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                              struct bytes *out)
{
    openai_event_begin(g, out);
    choice_begin(choice, chunk->text, chunk->text_bytes, out);
    completions_add_logprobs(g, choice, chunk, choice->logprobs);
    if (choice->logprobs[TOKENS].n) {
        add_logprobs_member(choice->logprobs, out);
        for (int k = 0; k < HTTP_LOGPROB_LISTS; k++)
            choice->logprobs[k].n = 0;
    } else {
        JSON_ADD(out, ",\"logprobs\":null");
    }
    openai_chunk_end(g, chunk, out);
}

static void completions_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    openai_event_begin(g, out);
    choice_begin(choice, "", 0, out);
    JSON_ADD(out, ",\"logprobs\":null");
    openai_choice_end(g, choice, out);
    openai_event_end(g, out);
}

// --- the whole answer

static void completions_whole(struct http_generation *g, struct bytes *out)
{
    openai_begin(g, g->api->object, out);
    for (int i = 0; i < g->n_choices; i++) {
        const struct http_choice *choice = &g->choices[i];
        json_add_comma(out);
        choice_begin(choice, choice->text.data, choice->text.n, out);
        if (choice->logprobs[TOKENS].n) {
            add_logprobs_member(choice->logprobs, out);
        } else {
            JSON_ADD(out, ",\"logprobs\":null");
        }
        openai_choice_end(g, choice, out);
        if (!g->prompt_logprobs) continue;
        out->n--; // the brace that ends the choice
        openai_prompt_logprobs_member(g, choice, out);
        JSON_ADD(out, "}");
    }
    openai_end(g, out);
}

const struct http_api http_completions = {
    .method = "completions",
    .resumes = true,
    .id_prefix = "cmpl",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .read = completions_read,
    .knows = completions_knows,
    .add_logprobs = completions_add_logprobs,
    .echo_begin = completions_echo_begin,
    .add_prompt_logprobs = openai_add_prompt_logprobs,
    .chunk = completions_chunk,
    .finish = completions_finish,
    .end = openai_stream_end,
    .fail = openai_stream_fail,
    .whole = completions_whole,
};
