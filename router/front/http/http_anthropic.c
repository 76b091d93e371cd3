// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_anthropic.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/http_count.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/json_anthropic.h"
#include "router/front/http/json_anthropic_answer.h"

// Data of a generation: its content blocks, and its stop strings. The answer names the stop string that ended it.
struct message {
    struct anthropic_blocks blocks;
    int n;
    char *strings[]; // [n] stop strings; owned
};

static void message_free(void *data)
{
    struct message *m = data;
    for (int i = 0; i < m->n; i++)
        free(m->strings[i]);
    free(m);
}

static struct message *message_create(const json_t *list)
{
    size_t n = json_array_size(list);
    struct message *m = mem_alloc(sizeof *m + n * sizeof *m->strings);
    m->n = (int)n;
    for (size_t i = 0; i < n; i++)
        m->strings[i] = mem_string(json_string_value(json_array_get(list, i)));
    return m;
}

static enum status anthropic_read(const json_t *body, struct http_input *in)
{
    const struct anthropic_options options = {.system_turns = in->system_turns};
    TRY(anthropic_to_chat(body, &options, &in->translated));
    TRY(http_chat.read(in->translated, in)); // also limits the number of stop strings
    in->max_tokens_name = "max_tokens";
    in->data = (struct http_data){message_create(json_object_get(body, "stop_sequences")), message_free};
    return STATUS_OK;
}

static bool anthropic_field_known(const char *name)
{
    return anthropic_knows(name) || http_chat.knows(name);
}

static struct anthropic_answer answer_of(const struct http_generation *g)
{
    return (struct anthropic_answer){g->id, g->client.front->model_names[0]};
}

static struct anthropic_end end_of(const struct http_generation *g, const struct http_choice *choice)
{
    const struct message *m = g->data.value;
    bool named = choice->stop >= 0 && choice->stop < m->n;
    bool calls = choice->chat && chat_answer_calls(choice->chat);
    return (struct anthropic_end){choice->reason, named ? m->strings[choice->stop] : NULL, &g->usage, calls,
                                  &g->explanation};
}

static void anthropic_begin(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    struct anthropic_answer answer = answer_of(g);
    anthropic_add_begin(out, &answer, g->usage.prompt_tokens);
}

static void anthropic_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                            struct bytes *out)
{
    struct message *m = g->data.value;
    anthropic_add_part(out, &m->blocks, OUTPUT_CONTENT, NULL, chunk->text, chunk->text_bytes);
}

static void anthropic_part(struct http_generation *g, struct http_choice *choice, enum output_kind kind,
                           const struct chat_call *call, const char *text, size_t n, struct bytes *out)
{
    struct message *m = g->data.value;
    anthropic_add_part(out, &m->blocks, kind, call, text, n);
}

static void anthropic_finish(struct http_generation *g, struct http_choice *choice, struct bytes *out)
{
    struct anthropic_end end = end_of(g, choice);
    struct message *m = g->data.value;
    anthropic_add_end(out, &m->blocks, &end);
}

static void anthropic_fail(struct http_generation *g, enum status status, const char *message, struct bytes *out)
{
    anthropic_add_error_event(out, status, message);
}

static void anthropic_whole(struct http_generation *g, struct bytes *out)
{
    const struct http_choice *choice = g->choices;
    struct anthropic_answer answer = answer_of(g);
    struct anthropic_end end = end_of(g, choice);
    anthropic_add_message(out, &answer, &choice->text, choice->chat, &end);
}

const struct http_api http_anthropic = {
    .method = "messages",
    .id_prefix = "msg",
    .context_words = CONTEXT_WORDS_ANTHROPIC,
    .read = anthropic_read,
    .knows = anthropic_field_known,
    .begin = anthropic_begin,
    .chunk = anthropic_chunk,
    .part = anthropic_part,
    .finish = anthropic_finish,
    .fail = anthropic_fail,
    .whole = anthropic_whole,
};

// --- counting tokens

static enum status count_read(const json_t *body, struct http_input *in)
{
    const struct anthropic_options options = {.counted = true, .system_turns = in->system_turns};
    TRY(anthropic_to_chat(body, &options, &in->translated));
    return http_chat.read(in->translated, in);
}

static const struct http_count_api count_api = {.read = count_read, .object = ""};

void http_count_tokens_post(struct http_exchange *x)
{
    http_count_start(x, &count_api);
}
