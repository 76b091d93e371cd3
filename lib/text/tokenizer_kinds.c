// SPDX-License-Identifier: Apache-2.0
// Reads the typed parts of tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor. Each is an object with a
// "type" and its own members, or a Sequence of such objects, flattened here into the step lists of tokenizer_parts.h.
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"
#include "lib/text/tokenizer_parts.h"

// GPT-2's word pattern, which ByteLevel uses if use_regex is true.
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef enum status read_fn(struct tokenizer *t, const json_t *value, const char *where, const char *type);

static enum status unsupported(const char *where, const char *what, const char *known)
{
    return status_fail(STATUS_UNSUPPORTED, "%s %s is not supported: known are %s", where, what, known);
}

static enum status unknown_type(const char *where, const char *type, const char *known)
{
    char what[96];
    snprintf(what, sizeof what, "type \"%.64s\"", type);
    return unsupported(where, what, known);
}

// Calls `read` for the value, or in order for every leaf of a Sequence. `list` is the member of the Sequence.
static enum status read_each(struct tokenizer *t, const json_t *value, const char *where, const char *list,
                             read_fn *read)
{
    const char *type;
    const json_t *items;
    if (!json_is_object(value))
        return status_fail(STATUS_DATA, "%s is %s: must be an object", where, json_type_name(value));
    TRY(member_string(value, where, "type", "", &type));
    if (strcmp(type, "Sequence") != 0) return read(t, value, where, type);
    TRY(member_array(value, where, list, &items));
    for (size_t i = 0; i < json_array_size(items); i++) {
        char place[128];
        snprintf(place, sizeof place, "%.80s.%s[%zu]", where, list, i);
        TRY(read_each(t, json_array_get(items, i), place, list, read));
    }
    return STATUS_OK;
}

// Reads {"String": "..."} or {"Regex": "..."}.
static enum status read_pattern(const json_t *object, const char *where, struct pattern **pattern_p)
{
    const json_t *value = NULL;
    const char *text;
    TRY(member_object(object, where, "pattern", &value));
    bool literal = json_object_get(value, "String") != NULL;
    TRY(member_string(value, where, literal ? "String" : "Regex", NULL, &text));
    enum status status;
    if (!text)
        status = status_fail(STATUS_DATA, "%s.pattern: must be {\"String\": ...} or {\"Regex\": ...}", where);
    else if (literal)
        status = pattern_open_literal(text, pattern_p);
    else
        status = pattern_open_regex(text, pattern_p);
    return status ? status_context(status, "%s", where) : STATUS_OK;
}

// ---- Normalizer.

static enum status read_normalizer(struct tokenizer *t, const json_t *value, const char *where, const char *type)
{
    struct normalizer_step step = {.kind = NORMALIZER_NFC};
    const char *text = "";
    if (t->normalizer.n_steps == NORMALIZER_STEPS_LIMIT)
        return status_fail(STATUS_UNSUPPORTED, "normalizer: more than %d steps", NORMALIZER_STEPS_LIMIT);
    if (!strcmp(type, "Prepend")) {
        step.kind = NORMALIZER_PREPEND;
        TRY(member_string(value, where, "prepend", "", &text));
    } else if (!strcmp(type, "Replace")) {
        step.kind = NORMALIZER_REPLACE;
        TRY(member_string(value, where, "content", "", &text));
        TRY(read_pattern(value, where, &step.pattern));
    } else if (strcmp(type, "NFC") != 0) {
        return unknown_type(where, type, "NFC, Prepend, Replace and Sequence");
    }
    step.text = mem_string(text);
    step.n = strlen(text);
    t->normalizer.steps[t->normalizer.n_steps++] = step;
    return STATUS_OK;
}

enum status tokenizer_read_normalizer(struct tokenizer *t, const json_t *value)
{
    if (!value || json_is_null(value)) return STATUS_OK;
    return read_each(t, value, "normalizer", "normalizers", read_normalizer);
}

// ---- Pre-tokenizer.

static enum status add_pretoken(struct tokenizer *t, struct pretoken_step step)
{
    if (t->n_pretoken == PRETOKEN_STEPS_LIMIT) {
        pattern_free(step.pattern);
        return status_fail(STATUS_UNSUPPORTED, "pre_tokenizer: more than %d steps", PRETOKEN_STEPS_LIMIT);
    }
    step.text = mem_string(step.text);
    t->pretoken[t->n_pretoken++] = step;
    return STATUS_OK;
}

static enum status add_split(struct tokenizer *t, const char *regex, enum split_behavior behavior)
{
    struct pretoken_step step = {.kind = PRETOKEN_SPLIT, .behavior = behavior};
    TRY(pattern_open_regex(regex, &step.pattern));
    return add_pretoken(t, step);
}

static enum status read_byte_level(struct tokenizer *t, const json_t *value, const char *where)
{
    bool blank, regex;
    TRY(member_bool(value, where, "add_prefix_space", true, &blank));
    TRY(member_bool(value, where, "use_regex", true, &regex));
    t->bpe.byte_level = true;
    if (blank) TRY(add_pretoken(t, (struct pretoken_step){.kind = PRETOKEN_BLANK}));
    return regex ? add_split(t, GPT2_PATTERN, SPLIT_ISOLATED) : STATUS_OK;
}

static enum status read_split(struct tokenizer *t, const json_t *value, const char *where)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                            "MergedWithNext"};
    struct pretoken_step step = {.kind = PRETOKEN_SPLIT};
    const char *behavior;
    int i = 0;
    TRY(member_string(value, where, "behavior", "", &behavior));
    TRY(member_bool(value, where, "invert", false, &step.invert));
    while (i < 5 && strcmp(behavior, behaviors[i]) != 0)
        i++;
    if (i == 5)
        return status_fail(STATUS_DATA,
                           "%s.behavior \"%.64s\": must be Isolated, Removed, Contiguous, MergedWithPrevious "
                           "or MergedWithNext",
                           where, behavior);
    step.behavior = (enum split_behavior)i;
    TRY(read_pattern(value, where, &step.pattern));
    return add_pretoken(t, step);
}

// Reads `prepend_scheme`, or the older `add_prefix_space`, of a Metaspace pre-tokenizer or decoder.
static enum status read_scheme(const json_t *value, const char *where, enum prepend_scheme *scheme_p)
{
    bool prefix;
    const char *name;
    TRY(member_bool(value, where, "add_prefix_space", true, &prefix));
    TRY(member_string(value, where, "prepend_scheme", "always", &name));
    if (!prefix || !strcmp(name, "never"))
        *scheme_p = PREPEND_NEVER;
    else if (!strcmp(name, "first"))
        *scheme_p = PREPEND_FIRST;
    else if (!strcmp(name, "always"))
        *scheme_p = PREPEND_ALWAYS;
    else
        return status_fail(STATUS_DATA, "%s.prepend_scheme \"%.64s\": must be always, first or never", where, name);
    return STATUS_OK;
}

static enum status read_replacement(const json_t *value, const char *where, const char **replacement_p)
{
    TRY(member_string(value, where, "replacement", TOKENIZER_METASPACE, replacement_p));
    const char *text = *replacement_p;
    if (!*text || utf8_length(*text) != strlen(text))
        return status_fail(STATUS_DATA, "%s.replacement: must be one character", where);
    return STATUS_OK;
}

static enum status read_metaspace(struct tokenizer *t, const json_t *value, const char *where)
{
    struct pretoken_step step = {.kind = PRETOKEN_METASPACE};
    const char *text;
    bool split;
    TRY(read_replacement(value, where, &text));
    TRY(read_scheme(value, where, &step.scheme));
    TRY(member_bool(value, where, "split", true, &split));
    step.text = (char *)text; // add_pretoken copies the text
    step.n = strlen(text);
    TRY(add_pretoken(t, step));
    if (!split) return STATUS_OK;
    struct pretoken_step cut = {.kind = PRETOKEN_SPLIT, .behavior = SPLIT_WITH_NEXT};
    TRY(pattern_open_literal(text, &cut.pattern));
    return add_pretoken(t, cut);
}

static enum status read_pretokenizer(struct tokenizer *t, const json_t *value, const char *where, const char *type)
{
    bool individual = false;
    if (t->bpe.byte_level)
        return status_fail(STATUS_UNSUPPORTED, "%s: nothing may follow ByteLevel in a pre-tokenizer", where);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(t, value, where);
    if (!strcmp(type, "Split")) return read_split(t, value, where);
    if (!strcmp(type, "Metaspace")) return read_metaspace(t, value, where);
    if (strcmp(type, "Digits") != 0)
        return unknown_type(where, type, "ByteLevel, Split, Digits, Metaspace and Sequence");
    TRY(member_bool(value, where, "individual_digits", false, &individual));
    return add_split(t, "\\p{N}", individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
}

enum status tokenizer_read_pretokenizer(struct tokenizer *t, const json_t *value)
{
    if (!value || json_is_null(value)) return STATUS_OK;
    return read_each(t, value, "pre_tokenizer", "pretokenizers", read_pretokenizer);
}

// ---- Decoder. Streamed text cannot be changed later, so only decoders that work token by token are supported, and
// Strip at the start.

#define DECODERS "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip at the start and Sequence"

static enum status add_replace(struct tokenizer *t, const char *where, struct pattern *pattern, const char *text)
{
    struct decoder *d = &t->decoder;
    if (d->n_replace == REPLACE_LIMIT) {
        pattern_free(pattern);
        return status_fail(STATUS_UNSUPPORTED, "%s: more than %d Replace steps", where, REPLACE_LIMIT);
    }
    d->replace[d->n_replace].pattern = pattern;
    d->replace[d->n_replace].text = mem_string(text);
    d->replace[d->n_replace++].n = strlen(text);
    return STATUS_OK;
}

static enum status read_strip(struct tokenizer *t, const json_t *value, const char *where)
{
    const char *content;
    int start, stop;
    TRY(member_string(value, where, "content", " ", &content));
    TRY(member_int(value, where, "start", 0, 0, 1 << 20, &start));
    TRY(member_int(value, where, "stop", 0, 0, 1 << 20, &stop));
    if (!*content || utf8_length(*content) != strlen(content))
        return status_fail(STATUS_DATA, "%s.content: must be one character", where);
    if (stop || !t->decoder.fused || t->decoder.strip)
        return unsupported(where, "Strip at the end, without Fuse before it, or twice", DECODERS);
    t->decoder.strip = mem_string(content);
    t->decoder.strip_max = start;
    return STATUS_OK;
}

static enum status read_decoder(struct tokenizer *t, const json_t *value, const char *where, const char *type)
{
    struct decoder *d = &t->decoder;
    struct pattern *pattern;
    const char *text;
    enum prepend_scheme scheme;
    bool rewrites = !strcmp(type, "Replace") || !strcmp(type, "Metaspace");
    if (d->fused && (rewrites || !strcmp(type, "ByteFallback") || !strcmp(type, "ByteLevel")))
        return status_fail(STATUS_UNSUPPORTED, "%s: %s after Fuse is not supported", where, type);
    d->known = true;
    if (!strcmp(type, "ByteLevel")) {
        d->byte_level = true;
    } else if (!strcmp(type, "ByteFallback")) {
        d->byte_fallback = true;
    } else if (!strcmp(type, "Fuse")) {
        d->fused = true;
    } else if (!strcmp(type, "Strip")) {
        return read_strip(t, value, where);
    } else if (!strcmp(type, "Replace")) {
        TRY(member_string(value, where, "content", "", &text));
        TRY(read_pattern(value, where, &pattern));
        return add_replace(t, where, pattern, text);
    } else if (!strcmp(type, "Metaspace")) {
        TRY(read_replacement(value, where, &text));
        TRY(read_scheme(value, where, &scheme));
        TRY(pattern_open_literal(text, &pattern));
        TRY(add_replace(t, where, pattern, " "));
        if (scheme != PREPEND_NEVER && !d->metaspace) d->metaspace = mem_string(text);
    } else {
        return unknown_type(where, type, DECODERS);
    }
    return STATUS_OK;
}

enum status tokenizer_read_decoder(struct tokenizer *t, const json_t *value)
{
    struct decoder *d = &t->decoder;
    if (value && !json_is_null(value)) TRY(read_each(t, value, "decoder", "decoders", read_decoder));
    if (!d->known) return unsupported("decoder", "null", DECODERS);
    if (d->byte_level && (d->byte_fallback || d->n_replace || d->strip))
        return unsupported("decoder", "ByteLevel together with other decoders", DECODERS);
    return STATUS_OK;
}

// ---- Post-processor: tokens added before and after a text.

static enum status add_frame_tokens(struct tokenizer *t, const json_t *specials, const char *where, const char *name,
                                    bool after)
{
    const json_t *special, *ids;
    TRY(member_object(specials, where, name, &special));
    TRY(member_array(special, where, "ids", &ids));
    if (!ids) return status_fail(STATUS_DATA, "%s.special_tokens: \"%.64s\" is missing or has no ids", where, name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *item = json_array_get(ids, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= t->n_ids || !t->spelling[id])
            return status_fail(STATUS_DATA, "%s.special_tokens: \"%.64s\" names an id that no token has", where, name);
        int *n = after ? &t->n_after : &t->n_before;
        if (*n == FRAME_LIMIT)
            return status_fail(STATUS_UNSUPPORTED, "%s: more than %d tokens around a text", where, FRAME_LIMIT);
        (after ? t->after : t->before)[(*n)++] = (int32_t)id;
    }
    return STATUS_OK;
}

static enum status read_template(struct tokenizer *t, const json_t *value, const char *where)
{
    const json_t *single, *specials, *piece;
    bool after = false;
    TRY(member_array(value, where, "single", &single));
    TRY(member_object(value, where, "special_tokens", &specials));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *name = NULL;
        if ((piece = json_object_get(item, "SpecialToken"))) {
            TRY(member_string(piece, where, "id", "", &name));
            TRY(add_frame_tokens(t, specials, where, name, after));
        } else if (json_object_get(item, "Sequence") && !after) {
            after = true;
        } else {
            return status_fail(STATUS_DATA, "%s.single: must be special tokens around one Sequence", where);
        }
    }
    return after ? STATUS_OK : status_fail(STATUS_DATA, "%s.single: has no Sequence", where);
}

static enum status read_postprocessor(struct tokenizer *t, const json_t *value, const char *where, const char *type)
{
    if (!strcmp(type, "ByteLevel")) return STATUS_OK; // changes offsets, not ids
    if (!strcmp(type, "TemplateProcessing")) return read_template(t, value, where);
    return unknown_type(where, type, "TemplateProcessing, ByteLevel and Sequence");
}

enum status tokenizer_read_postprocessor(struct tokenizer *t, const json_t *value)
{
    if (!value || json_is_null(value)) return STATUS_OK;
    return read_each(t, value, "post_processor", "processors", read_postprocessor);
}
