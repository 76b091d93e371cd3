// SPDX-License-Identifier: Apache-2.0
#include "bench/prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/passes.h"
#include "lib/base/mem.h"
#include "lib/text/tokenizer.h"

enum { LENGTH_MAX = 10000000, TOKENS_MAX = 1 << 30 };

struct prompt_reader {
    struct prompts prompts;
    int capacity, memory_capacity;
    int64_t stored; // tokens in memory
    struct tokenizer *tokenizer;
};

static enum status reader_add_length(struct prompt_reader *r, long long length)
{
    struct prompts *p = &r->prompts;
    if (length < 1 || length > LENGTH_MAX)
        return status_fail(STATUS_INVALID, "a prompt of %lld tokens: must be from 1 to %d", length, (int)LENGTH_MAX);
    if (p->tokens + length > TOKENS_MAX)
        return status_fail(STATUS_INVALID, "the prompts have more than %d tokens together: use --limit",
                           (int)TOKENS_MAX);
    MEM_GROW(p->length, p->n, r->capacity);
    p->length[p->n++] = (int32_t)length;
    p->tokens += length;
    if (length > p->longest) p->longest = (int32_t)length;
    return STATUS_OK;
}

static enum status reader_add_length_line(struct prompt_reader *r, const char *line)
{
    char *end;
    errno = 0;
    long long length = strtoll(line, &end, 10);
    if (end == line || errno || end[strspn(end, " \t\r\n")])
        return status_fail(STATUS_INVALID, "must be one whole number");
    return reader_add_length(r, length);
}

static enum status reader_add_tokens(struct prompt_reader *r, const int32_t *tokens, size_t n)
{
    enum status status = reader_add_length(r, (long long)n);
    if (status != STATUS_OK) return status;
    struct prompts *p = &r->prompts;
    while (r->stored + (int64_t)n > r->memory_capacity)
        MEM_GROW(p->memory, r->memory_capacity, r->memory_capacity);
    memcpy(p->memory + r->stored, tokens, n * sizeof *tokens);
    r->stored += (int64_t)n;
    return STATUS_OK;
}

static enum status reader_add_ids(struct prompt_reader *r, const json_t *ids)
{
    size_t n = json_array_size(ids);
    int32_t *tokens = mem_alloc_array(n + 1, sizeof *tokens);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > INT32_MAX)
            status = status_fail(STATUS_INVALID, "token_ids: must be a list of token ids");
        tokens[i] = (int32_t)id;
    }
    if (status == STATUS_OK) status = reader_add_tokens(r, tokens, n);
    free(tokens);
    return status;
}

static enum status reader_add_row_line(struct prompt_reader *r, const char *line)
{
    json_error_t error;
    json_t *row = json_loads(line, JSON_ALLOW_NUL, &error);
    if (!row) return status_fail(STATUS_INVALID, "not JSON: %s", error.text);
    const json_t *text = json_object_get(row, "prompt"), *ids = json_object_get(row, "token_ids");
    enum status status;
    if (json_is_string(text)) {
        int32_t *tokens = NULL;
        int n = 0;
        status = tokenizer_encode(r->tokenizer, json_string_value(text), json_string_length(text),
                                  TOKENIZER_ADD_SPECIAL, &tokens, &n);
        if (status == STATUS_OK) status = reader_add_tokens(r, tokens, (size_t)n);
        free(tokens);
    } else if (json_is_array(ids)) {
        status = reader_add_ids(r, ids);
    } else {
        status = status_fail(STATUS_INVALID, "the row has neither \"prompt\" nor \"token_ids\"");
    }
    json_decref(row);
    return status;
}

// Calls `add_line` for every line that is not empty.
static enum status reader_read_file(struct prompt_reader *r, const char *path, int limit,
                                    enum status (*add_line)(struct prompt_reader *, const char *))
{
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    enum status status = STATUS_OK;
    for (int number = 1; status == STATUS_OK && !(limit && r->prompts.n == limit); number++) {
        if (getline(&line, &size, file) < 0) break;
        if (line[strspn(line, " \t\r\n")]) status = add_line(r, line);
        if (status != STATUS_OK) status_context(status, "%s:%d", path, number);
    }
    if (status == STATUS_OK && ferror(file)) status = status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    if (status == STATUS_OK && !r->prompts.n) status = status_fail(STATUS_INVALID, "%s: has no prompts", path);
    free(line);
    fclose(file);
    return status;
}

enum status prompts_read_lengths(const char *path, int limit, struct prompts *prompts_p)
{
    struct prompt_reader r = {.capacity = 0};
    enum status status = reader_read_file(&r, path, limit, reader_add_length_line);
    if (status == STATUS_OK)
        *prompts_p = r.prompts;
    else
        prompts_free(&r.prompts);
    return status;
}

enum status prompts_read_texts(const char *path, const char *model_dir, int limit, struct prompts *prompts_p)
{
    struct prompt_reader r = {.capacity = 0};
    enum status status = tokenizer_open(model_dir, &r.tokenizer);
    if (status == STATUS_OK) status = reader_read_file(&r, path, limit, reader_add_row_line);
    tokenizer_free(r.tokenizer);
    if (status != STATUS_OK) {
        prompts_free(&r.prompts);
        return status;
    }
    struct prompts *p = &r.prompts;
    p->data = mem_alloc_array((size_t)p->n, sizeof *p->data);
    int64_t at = 0;
    for (int i = 0; i < p->n; at += p->length[i++])
        p->data[i] = p->memory + at;
    *prompts_p = *p;
    return STATUS_OK;
}

void prompts_free(struct prompts *prompts)
{
    free(prompts->length);
    free(prompts->data);
    free(prompts->memory);
    *prompts = (struct prompts){0};
}

// Makes up the tokens: prompt i holds the tokens i, i + 1, ... of one pseudo-random stream.
void prompts_make_up(struct prompts *p, int vocab_size)
{
    int n = p->longest + p->n;
    p->memory = mem_alloc_array((size_t)n, sizeof *p->memory);
    p->data = mem_alloc_array((size_t)p->n, sizeof *p->data);
    passes_tokens(p->memory, n, vocab_size);
    for (int i = 0; i < p->n; i++)
        p->data[i] = p->memory + i;
}

enum status prompts_check(const struct prompts *p, int context, int vocab_size)
{
    for (int i = 0; i < p->n; i++) {
        if (p->length[i] > context)
            return status_fail(STATUS_INVALID, "prompt %d has %d tokens, but the model's context is %d", i + 1,
                               (int)p->length[i], context);
        for (int t = 0; t < p->length[i]; t++)
            if (p->data[i][t] < 0 || p->data[i][t] >= vocab_size)
                return status_fail(STATUS_INVALID, "prompt %d: token id %d, but the vocabulary has %d", i + 1,
                                   (int)p->data[i][t], vocab_size);
    }
    return STATUS_OK;
}
