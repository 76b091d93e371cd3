// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/compression.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/request/compress_choice.h"

const char *compress_rule_name(enum compress_rule rule)
{
    static const char *const names[] = {"prose", "code", "json", "system", "last_user", "call"};
    return names[rule];
}

void compression_free(struct compression *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_texts; i++) {
        cut_units_free(&c->texts[i].units);
        free(c->texts[i].keep);
        free(c->texts[i].kept);
    }
    free(c->texts);
    free(c->starts);
    json_decref(c->input);
    free(c);
}

size_t compression_bytes(const struct compression *c)
{
    const size_t unit_bytes = sizeof(struct cut_unit) + sizeof(struct text_range) + sizeof(bool);
    size_t bytes = sizeof *c + (size_t)c->tokens_before * sizeof *c->starts;
    for (int i = 0; i < c->n_texts; i++) {
        const struct compress_text *text = &c->texts[i];
        bytes += sizeof *text + json_string_length(text->value) + (size_t)text->units.n * unit_bytes;
    }
    return bytes;
}

// --- texts

struct place {
    int message, part;
    enum compress_rule whole; // the rule by which the text is kept whole; COMPRESS_PROSE: it is divided
};

static void add_text(struct compression *c, json_t *value, const struct place *place)
{
    static const enum compress_rule rules[] = {
        [CUT_PROSE] = COMPRESS_PROSE, [CUT_CODE] = COMPRESS_CODE, [CUT_JSON] = COMPRESS_JSON};
    size_t n = json_string_length(value);
    MEM_GROW(c->texts, c->n_texts, c->capacity);
    struct compress_text *text = &c->texts[c->n_texts++];
    *text = (struct compress_text){.value = value, .message = place->message, .part = place->part};
    text->units = place->whole ? cut_units_whole(n) : cut_units_create(json_string_value(value), n);
    text->keep = mem_alloc_array((size_t)text->units.n + 1, sizeof *text->keep);
    text->kept = mem_alloc_array((size_t)text->units.n + 1, sizeof *text->kept);
    text->rule = place->whole ? place->whole : rules[text->units.kind];
}

// Keeps the last paragraph of a prompt, which is usually its question: at most the last quarter, at least the last
// unit.
static void fix_end(struct compress_text *text)
{
    enum { END_BYTES_MAX = 256 };
    const char *bytes = json_string_value(text->value);
    size_t n = json_string_length(text->value), end = n;
    while (end > 0 && (bytes[end - 1] == '\n' || bytes[end - 1] == ' '))
        end--;
    size_t start = end, least = n / 4 < END_BYTES_MAX ? n - n / 4 : n - END_BYTES_MAX;
    while (start > least && !(bytes[start - 1] == '\n' && start >= 2 && bytes[start - 2] == '\n'))
        start--;
    for (int i = 0; i < text->units.n; i++) {
        struct cut_unit *unit = &text->units.units[i];
        if (unit->range.start >= start || unit->range.end >= end) unit->fixed = true;
    }
}

static enum status refuse(int message, const char *what)
{
    return status_fail(STATUS_INVALID, "messages[%d]: %s", message, what);
}

// Adds the texts of a list of parts. A part of type tool_result (Anthropic) has a content of its own.
static enum status add_content(struct compression *c, const json_t *content, const struct place *place, bool inner)
{
    struct place at = *place;
    size_t i;
    json_t *part;
    if (json_is_string(content)) {
        add_text(c, (json_t *)content, place);
        return STATUS_OK;
    }
    if (content && !json_is_null(content) && !json_is_array(content))
        return refuse(at.message, "content must be a string, a list of parts or null");
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, "text");
        if (!type) return refuse(at.message, "each part of content must be an object with a type");
        if (!inner) at.part = (int)i;
        if (strcmp(type, "text") == 0) {
            if (!json_is_string(text)) return refuse(at.message, "the text of a part must be a string");
            add_text(c, text, &at);
        } else if (strcmp(type, "tool_result") == 0 && !inner) {
            TRY(add_content(c, json_object_get(part, "content"), &at, true));
        }
    }
    return STATUS_OK;
}

// Adds the names and arguments of tool calls. A speculator reads them, because they say what the results are about.
static void add_calls(struct compression *c, const json_t *calls, int message)
{
    const struct place place = {message, -1, COMPRESS_CALL};
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        json_t *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments");
        if (json_is_string(name)) add_text(c, name, &place);
        if (json_is_string(arguments)) add_text(c, arguments, &place);
    }
}

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

static bool is_system(const json_t *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

static enum status check_role(const json_t *message, int i)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    if (!json_is_object(message)) return refuse(i, "must be an object with role and content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) return refuse(i, "role must be a string");
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++)
        if (strcmp(role, roles[r]) == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "messages[%d]: role '%.64s' is not known: give system, developer, user, assistant, tool or "
                       "function",
                       i, role);
}

static enum status add_messages(struct compression *c, bool cut_system)
{
    size_t n = json_array_size(c->input);
    int last_user = (int)n - 1;
    if (!n) return status_fail(STATUS_INVALID, "messages: at least one is required");
    TRY(intake_check_messages(n));
    while (last_user >= 0 && !has_role(json_array_get(c->input, (size_t)last_user), "user"))
        last_user--;
    for (int i = 0; i < (int)n; i++) {
        const json_t *message = json_array_get(c->input, (size_t)i);
        struct place place = {i, -1, COMPRESS_PROSE};
        TRY(check_role(message, i));
        if (!cut_system && is_system(message)) place.whole = COMPRESS_SYSTEM;
        if (i == last_user) place.whole = COMPRESS_LAST_USER;
        TRY(add_content(c, json_object_get(message, "content"), &place, false));
        add_calls(c, json_object_get(message, "tool_calls"), i);
    }
    return STATUS_OK;
}

enum status compression_create(json_t *input, bool cut_system, struct compression **c_p)
{
    struct compression *c = mem_alloc(sizeof *c);
    enum status status = STATUS_OK;
    c->input = input;
    if (json_is_array(input)) {
        status = add_messages(c, cut_system);
    } else {
        add_text(c, input, &(struct place){0, -1, COMPRESS_PROSE});
        fix_end(c->texts);
    }
    if (status == STATUS_OK)
        *c_p = c;
    else
        compression_free(c);
    return status;
}

// --- tokens

// Appends what is kept of each text, with a blank line between two texts. `all`: appends the whole texts, and writes
// down their places.
static void join(struct compression *c, bool all, struct bytes *joined)
{
    for (int i = 0; i < c->n_texts; i++) {
        struct compress_text *text = &c->texts[i];
        const char *bytes = json_string_value(text->value);
        size_t before = joined->n;
        if (before) bytes_add(joined, "\n\n", 2);
        size_t start = joined->n;
        if (all) bytes_add(joined, bytes, json_string_length(text->value));
        for (int k = 0; k < text->n_kept && !all; k++)
            bytes_add(joined, bytes + text->kept[k].start, text->kept[k].end - text->kept[k].start);
        if (all) text->joined = (struct text_range){start, joined->n};
        if (joined->n == start) joined->n = before; // an empty text
    }
}

enum status compression_tokenise(const struct front *front, struct compression *c, int32_t **tokens_p)
{
    struct bytes joined = {0};
    join(c, true, &joined);
    int context = front->config.max_context;
    enum status status =
        tokenizer_encode_untrusted(front->tokenizer, joined.data ? joined.data : "", joined.n, TOKENIZER_ADD_SPECIAL,
                                   NULL, 0, context, tokens_p, &c->starts, &c->tokens_before);
    bytes_free(&joined);
    if (status == STATUS_OUT_OF_RANGE)
        return context_refuse(CONTEXT_WORDS_OPENAI, context, false, context, model_config_context_note(&front->config));
    TRY(status);
    // A token that is added before the text belongs to no text. Its start is moved after all texts.
    for (int i = 0; i < c->tokens_before && tokenizer_is_special(front->tokenizer, (*tokens_p)[i]); i++)
        c->starts[i] = SIZE_MAX;
    return STATUS_OK;
}

static int count_tokens(const struct front *front, struct compression *c)
{
    struct bytes joined = {0};
    int32_t *tokens = NULL;
    int n = 0;
    join(c, false, &joined);
    if (intake_encode(front, joined.data ? joined.data : "", joined.n, TOKENIZER_ADD_SPECIAL, INT_MAX, &tokens, &n) !=
        STATUS_OK)
        n = c->tokens_before; // what remains of texts is as valid as the texts
    bytes_free(&joined);
    free(tokens);
    return n;
}

// --- what is kept

static void find_kept(struct compression *c)
{
    for (int i = 0; i < c->n_texts; i++)
        c->texts[i].n_kept = cut_kept(&c->texts[i].units, c->texts[i].keep, c->texts[i].kept);
}

static void keep_all(struct compression *c)
{
    for (int i = 0; i < c->n_texts; i++)
        memset(c->texts[i].keep, true, (size_t)c->texts[i].units.n * sizeof *c->texts[i].keep);
    find_kept(c);
    c->tokens_after = c->tokens_before;
}

static void replace_texts(struct compression *c)
{
    for (int i = 0; i < c->n_texts; i++) {
        struct compress_text *text = &c->texts[i];
        struct bytes left = {0};
        for (int k = 0; k < text->n_kept; k++)
            bytes_add(&left, json_string_value(text->value) + text->kept[k].start,
                      text->kept[k].end - text->kept[k].start);
        if (left.n < json_string_length(text->value))
            json_string_setn_nocheck(text->value, left.data ? left.data : "", left.n);
        bytes_free(&left);
    }
}

void compression_apply(const struct front *front, struct compression *c, const float *importance,
                       const struct compress_goal *goal)
{
    enum { ATTEMPTS = 8 };
    if (!importance || goal->keep_rate >= 1) {
        keep_all(c);
        return;
    }
    // The kept texts are tokenised again, because a cut changes the tokens next to it. If they have too many tokens,
    // `allowed` is reduced by the excess, in later attempts by twice, four times, ... the excess, and the choice is
    // repeated. The last attempt keeps only what is always kept.
    struct compress_choice *choice = compress_choice_create(c, importance);
    const int budget = compress_choice_budget(choice, goal);
    int allowed = budget;
    for (int attempt = 1;; attempt++) {
        compress_choice_keep(choice, attempt < ATTEMPTS ? allowed : 0);
        find_kept(c);
        c->tokens_after = count_tokens(front, c);
        if (c->tokens_after <= budget || goal->beyond || attempt == ATTEMPTS) break;
        allowed -= (c->tokens_after - budget) << (attempt - 1);
    }
    compress_choice_free(choice);
    replace_texts(c);
}
