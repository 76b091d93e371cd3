// SPDX-License-Identifier: Apache-2.0
// forepack tokenize and detokenize: use the tokenizer of a checkpoint, without a cluster.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/text/tokenizer.h"

static struct {
    char *model;
    bool special, json, keep_special;
} o;

static const struct option tokenize_options[] = {
    {.name = "model",
     .type = OPTION_STRING,
     .value = &o.model,
     .placeholder = "DIR",
     .help = "checkpoint directory (required)"},
    {.name = "special",
     .type = OPTION_BOOL,
     .value = &o.special,
     .default_text = "true",
     .help = "add special tokens such as BOS"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object: {\"token_ids\":[...]}"},
    {0},
};

static const struct option detokenize_options[] = {
    {.name = "model",
     .type = OPTION_STRING,
     .value = &o.model,
     .placeholder = "DIR",
     .help = "checkpoint directory (required)"},
    {.name = "keep-special",
     .type = OPTION_BOOL,
     .value = &o.keep_special,
     .help = "include special tokens in the text"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object: {\"text\":\"...\"}"},
    {0},
};

static enum status open_tokenizer(struct tokenizer **tokenizer_p)
{
    if (!o.model) return status_fail(STATUS_INVALID, "--model: required, the directory of a checkpoint");
    return tokenizer_open(o.model, tokenizer_p);
}

// Reads the only argument, or standard input for "-".
static enum status argument_read(char **rest, int n_rest, const char *name, char **data_p, size_t *size_p)
{
    if (n_rest != 1)
        return status_fail(STATUS_INVALID, "%s: give it as one argument, or - to read standard input", name);
    if (strcmp(rest[0], "-") == 0) return read_whole_file("-", data_p, size_p);
    *data_p = mem_string(rest[0]);
    *size_p = strlen(rest[0]);
    return STATUS_OK;
}

static void ids_print(const int32_t *ids, int n)
{
    if (o.json) printf("{\"token_ids\":[");
    for (int i = 0; i < n; i++)
        printf("%s%d", i ? (o.json ? "," : " ") : "", ids[i]);
    puts(o.json ? "]}" : "");
}

int command_tokenize(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest = options_main(tokenize_options,
                              "Usage: forepack tokenize --model DIR [--no-special] [--json] (TEXT | -)\n"
                              "Prints the token ids of a text on one line.",
                              argc, argv, rest);
    struct tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t size = 0;
    int32_t *ids = NULL;
    int n = 0;
    enum status status = open_tokenizer(&tokenizer);
    if (status == STATUS_OK) status = argument_read(rest, n_rest, "text", &text, &size);
    if (status == STATUS_OK) {
        unsigned flags = TOKENIZER_PARSE_SPECIAL | (o.special ? TOKENIZER_ADD_SPECIAL : 0);
        status = tokenizer_encode(tokenizer, text, size, flags, &ids, &n);
    }
    if (status == STATUS_OK) ids_print(ids, n);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    free(ids);
    free(text);
    tokenizer_free(tokenizer);
    options_free(tokenize_options);
    free(rest);
    return code;
}

// Parses token ids. The text may be ids separated by blanks or commas, a JSON list, or the JSON object that `forepack
// tokenize` prints.
static enum status ids_parse(const char *text, int32_t **ids_p, int *n_p)
{
    int32_t *ids = NULL;
    int n = 0, capacity = 0;
    const char *list = strchr(text, '[');
    for (const char *at = list ? list : text; *at;) {
        at += strspn(at, " \t\r\n,[]}");
        if (!*at) break;
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT_MAX) {
            free(ids);
            return status_fail(STATUS_INVALID,
                               "'%.20s': must be token ids: whole numbers separated by blanks or commas", at);
        }
        MEM_GROW(ids, n, capacity);
        ids[n++] = (int32_t)id;
        at = end;
    }
    if (!n) return status_fail(STATUS_INVALID, "token ids: give at least one");
    *ids_p = ids;
    *n_p = n;
    return STATUS_OK;
}

int command_detokenize(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest =
        options_main(detokenize_options,
                     "Usage: forepack detokenize --model DIR [--keep-special] [--json] (\"ID ID ...\" | ID... | -)\n"
                     "Prints the text of token ids.",
                     argc, argv, rest);
    struct tokenizer *tokenizer = NULL;
    char *input = NULL, *text = NULL;
    size_t size = 0, text_bytes = 0;
    int32_t *ids = NULL;
    int n = 0;
    enum status status = open_tokenizer(&tokenizer);
    if (status == STATUS_OK) {
        if (n_rest > 1) {
            for (int i = 0; i < n_rest; i++) {
                char *longer = mem_format("%s %s", input ? input : "", rest[i]);
                free(input);
                input = longer;
            }
        } else {
            status = argument_read(rest, n_rest, "token ids", &input, &size);
        }
    }
    if (status == STATUS_OK) status = ids_parse(input, &ids, &n);
    if (status == STATUS_OK) {
        status = tokenizer_decode(tokenizer, ids, n, o.keep_special ? 0 : TOKENIZER_SKIP_SPECIAL, &text, &text_bytes);
    }
    if (status == STATUS_OK && o.json) {
        json_t *object = json_object();
        json_object_set_new(object, "text", json_stringn(text, text_bytes));
        report_json(object);
    } else if (status == STATUS_OK) {
        fwrite(text, 1, text_bytes, stdout);
        putchar('\n');
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    free(text);
    free(ids);
    free(input);
    tokenizer_free(tokenizer);
    options_free(detokenize_options);
    free(rest);
    return code;
}
