// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/chat_answer.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random_number.h"

// Returns the token with exactly this text if it is a special token, or -1.
static int32_t special_token(const struct tokenizer *tokenizer, const char *text)
{
    int32_t *ids, id = -1;
    int n;
    if (tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &ids, &n) != STATUS_OK) return -1;
    if (n == 1 && tokenizer_is_special(tokenizer, ids[0])) id = ids[0];
    free(ids);
    return id;
}

struct chat_syntax chat_syntax_open(const struct chat_template *chat, const struct tokenizer *tokenizer)
{
    struct chat_syntax syntax = {.output = chat_template_syntax(chat), .call_marker = -1};
    const char *markers[OUTPUT_MARKERS_MAX];
    output_syntax_markers(&syntax.output, markers);
    for (int i = 0; markers[i]; i++) {
        int32_t id = special_token(tokenizer, markers[i]);
        if (id >= 0) syntax.shown[syntax.n_shown++] = id;
        if (strcmp(markers[i], "[TOOL_CALLS]") == 0) syntax.call_marker = id;
    }
    return syntax;
}

// Returns true if the prompt ends with the text, apart from blanks.
static bool prompt_ends_with(const struct tokenizer *tokenizer, const int32_t *prompt, int n, const char *text)
{
    enum { TAIL = 16 };
    int from = n > TAIL ? n - TAIL : 0;
    size_t size, length = strlen(text);
    char *tail;
    if (tokenizer_decode(tokenizer, prompt + from, n - from, TOKENIZER_CONTINUATION, &tail, &size) != STATUS_OK)
        return false;
    while (size && strchr(" \n\r\t", tail[size - 1]))
        size--;
    bool ends = size >= length && memcmp(tail + size - length, text, length) == 0;
    free(tail);
    return ends;
}

struct chat_answer *chat_answer_create(const struct chat_syntax *syntax, const struct tokenizer *tokenizer,
                                       const int32_t *prompt, int n, const json_t *tools, bool single)
{
    struct output_syntax output = syntax->output;
    if (!tools) output.calls = OUTPUT_CALLS_NONE;
    bool reasoning = output.reasoning_begin && prompt_ends_with(tokenizer, prompt, n, output.reasoning_begin);
    struct chat_answer *answer = mem_alloc(sizeof *answer);
    answer->parser = output_parser_create(&output, reasoning, tools);
    answer->single = single;
    return answer;
}

json_t *chat_tool_names(const json_t *tools)
{
    json_t *names = tools ? json_object() : NULL, *tool;
    size_t i;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        json_object_set_new(names, name, json_true());
    }
    return names;
}

void chat_answer_free(struct chat_answer *answer)
{
    if (!answer) return;
    output_parser_free(answer->parser);
    content_tokens_fini(&answer->tokens);
    bytes_free(&answer->reasoning);
    for (int i = 0; i < answer->n_calls; i++) {
        bytes_free(&answer->calls[i].name);
        bytes_free(&answer->calls[i].arguments);
    }
    free(answer->calls);
    free(answer);
}

static void id_create(char id[CHAT_CALL_ID_ROOM])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t random = random_number();
    for (int i = 0; i < CHAT_CALL_ID_ROOM - 1; i++, random /= 62)
        id[i] = digits[random % 62];
    id[CHAT_CALL_ID_ROOM - 1] = 0;
}

struct chat_call *chat_answer_add_call(struct chat_answer *answer)
{
    answer->dropped = answer->single && answer->n_calls;
    if (answer->dropped) return NULL;
    MEM_GROW(answer->calls, answer->n_calls, answer->capacity);
    struct chat_call *call = &answer->calls[answer->n_calls++];
    *call = (struct chat_call){0};
    id_create(call->id);
    return call;
}

struct chat_call *chat_answer_last_call(struct chat_answer *answer)
{
    return answer->dropped ? NULL : &answer->calls[answer->n_calls - 1];
}

enum output_cut chat_answer_cut(const struct chat_answer *answer)
{
    return answer->dropped ? OUTPUT_CUT_NONE : output_parser_cut(answer->parser);
}

bool chat_answer_calls(const struct chat_answer *answer)
{
    return answer->n_calls && chat_answer_cut(answer) == OUTPUT_CUT_NONE;
}
