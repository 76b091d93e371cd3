// SPDX-License-Identifier: Apache-2.0
// Runs JSON schemas through the product's matcher, for tests/suites. Argument: a model's folder, for its tokenizer.
// Input: JSON Lines {"schema": TEXT, "tests": [TEXT, ...]}, where each TEXT is JSON text. Output: one JSON line for
// each, with "refused", the reason if the schema is refused, or else "tests", a list with true for each text that the
// grammar allows as a whole answer, false, or the error of llguidance, and "walks", the errors in answers that are
// drawn at random from the masks.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/grammar/grammar.h"
#include "lib/text/unicode.h"

enum { WALKS = 3, WALK_TOKENS = 200 };

static struct tokenizer *tokenizer;
static struct grammar_library *library;
static int32_t eos;
static uint32_t *mask;
static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static bool allowed(int32_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

// Returns true or false, or the error message of llguidance.
static json_t *text_result(const struct grammar_matcher *start, const char *text)
{
    int32_t *tokens;
    int n;
    if (tokenizer_encode(tokenizer, text, strlen(text), 0, &tokens, &n) != STATUS_OK)
        return json_string(status_message());
    struct grammar_matcher *m = grammar_matcher_copy(start);
    json_t *result = NULL;
    for (int i = 0; i < n && !result; i++) {
        if (grammar_matcher_mask(m, mask) != STATUS_OK) {
            result = json_string(status_message());
        } else if (!allowed(tokens[i]) || grammar_matcher_accept(m, &tokens[i], 1) != STATUS_OK) {
            result = json_false();
        }
    }
    if (!result && grammar_matcher_is_complete(m)) result = json_true();
    if (!result)
        result =
            grammar_matcher_mask(m, mask) == STATUS_OK ? json_boolean(allowed(eos)) : json_string(status_message());
    grammar_matcher_free(m);
    free(tokens);
    return result;
}

// Draws a token. Most draws prefer tokens of JSON's structure, so that answers end. Returns -1 if none is allowed.
static int32_t draw(void)
{
    int32_t any = -1, structural = -1;
    uint32_t n_any = 0, n_structural = 0;
    for (int32_t t = 0; t < tokenizer_vocab_size(tokenizer); t++) {
        if (!allowed(t)) continue;
        const char *piece;
        size_t bytes;
        tokenizer_piece(tokenizer, t, &piece, &bytes);
        if (random_below(++n_any) == 0) any = t;
        bool prefer = t == eos || (bytes > 0 && strspn(piece, "{}[]\",:") >= bytes);
        if (prefer && random_below(++n_structural) == 0) structural = t;
    }
    return structural >= 0 && random_below(4) ? structural : any;
}

// Returns a list of an error message and the text so far, or NULL.
static json_t *walk_result(const struct grammar_matcher *start)
{
    struct grammar_matcher *m = grammar_matcher_copy(start);
    struct bytes text = {0};
    const char *error = NULL;
    for (int i = 0; i < WALK_TOKENS && !error && !grammar_matcher_is_complete(m); i++) {
        if (grammar_matcher_mask(m, mask) != STATUS_OK) {
            error = status_message();
            break;
        }
        int32_t token = draw();
        if (token == eos) break;
        const char *piece = "";
        size_t bytes = 0;
        if (token >= 0) tokenizer_piece(tokenizer, token, &piece, &bytes);
        bytes_add(&text, piece, bytes);
        if (token < 0)
            error = "no token is allowed";
        else if (grammar_matcher_accept(m, &token, 1) != STATUS_OK)
            error = status_message();
    }
    json_t *result = error ? json_pack("[s, s%]", error, text.data ? text.data : "", text.n) : NULL;
    if (error && !result) result = json_pack("[s]", error); // the text ends within a character
    bytes_free(&text);
    grammar_matcher_free(m);
    return result;
}

static json_t *schema_result(const json_t *line)
{
    struct grammar_spec spec =
        grammar_spec_of(GRAMMAR_JSON_SCHEMA, (char *)json_string_value(json_object_get(line, "schema")));
    struct grammar_matcher *m;
    if (grammar_spec_check(&spec) != STATUS_OK || grammar_matcher_create(library, &spec, &m) != STATUS_OK)
        return json_pack("{s:s}", "refused", status_message());
    json_t *tests = json_array(), *walks = json_array(), *test;
    size_t i;
    json_array_foreach(json_object_get(line, "tests"), i, test)
        json_array_append_new(tests, text_result(m, json_string_value(test)));
    for (int w = 0; w < WALKS; w++) {
        json_t *walk = walk_result(m);
        if (walk) json_array_append_new(walks, walk);
    }
    grammar_matcher_free(m);
    return json_pack("{s:o, s:o}", "tests", tests, "walks", walks);
}

static void lines_read(void)
{
    char *text = NULL;
    size_t room = 0;
    while (getline(&text, &room, stdin) > 0) {
        json_t *line = json_loads(text, 0, NULL), *result = schema_result(line);
        json_dumpf(result, stdout, JSON_COMPACT);
        puts("");
        fflush(stdout);
        json_decref(result);
        json_decref(line);
    }
    free(text);
}

int main(int argc, char **argv)
{
    if (argc != 2 || tokenizer_open(argv[1], &tokenizer) != STATUS_OK) return 2;
    eos = tokenizer_eos(tokenizer);
    int vocab_size = tokenizer_vocab_size(tokenizer);
    if (grammar_library_open(NULL, tokenizer, vocab_size, &eos, 1, &library) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return 2;
    }
    mask = mem_alloc_array(((size_t)vocab_size + 31) / 32, sizeof *mask);
    lines_read();
    free(mask);
    grammar_library_free(library);
    tokenizer_free(tokenizer);
    return 0;
}
