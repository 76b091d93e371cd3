// SPDX-License-Identifier: Apache-2.0
#include "lib/text/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { RANGE_FROM, RANGE_OVER };
#define FIELD_ROW(object, type, member, default_value, end, min, max)                                                  \
    {#member, GENERATION_FIELD_##type,  offsetof(struct object, member), default_value, min,                           \
     max,     RANGE_##end == RANGE_OVER},
#define SAMPLING_ROW(type, member, flag, default_value, end, min, max, unit, help)                                     \
    FIELD_ROW(sampling, type, member, default_value, end, min, max)
#define PREFILL_ROW(type, member, flag, default_value, end, min, max, unit, help)                                      \
    FIELD_ROW(prefill, type, member, default_value, end, min, max)

const struct generation_field sampling_fields[] = {SAMPLING_FIELDS(SAMPLING_ROW){0}};
const struct generation_field prefill_fields[] = {PREFILL_FIELDS(PREFILL_ROW){0}};

bool sampling_needs_host(const struct sampling *s, int index)
{
    return s->logprobs >= 0 || s->repetition_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0 ||
           s->logit_bias.n > 0 || s->grammar.kind != GRAMMAR_NONE || index < s->min_tokens;
}

void sampling_defaults(struct sampling *s)
{
#define SAMPLING_DEFAULT(type, member, flag, default_value, ...) .member = default_value,
    *s = (struct sampling){SAMPLING_FIELDS(SAMPLING_DEFAULT).n_stop_ids = 0};
}

void prefill_defaults(struct prefill *p)
{
#define PREFILL_DEFAULT(type, member, flag, default_value, ...) .member = default_value,
    *p = (struct prefill){PREFILL_FIELDS(PREFILL_DEFAULT).mode = PREFILL_AUTO};
}

// --- checks

double generation_field_number(const struct generation_field *field, const void *object)
{
    const void *at = (const char *)object + field->offset;
    switch (field->type) {
    case GENERATION_FIELD_REAL:
    case GENERATION_FIELD_OPTIONAL_REAL: return *(const double *)at;
    case GENERATION_FIELD_UINT64: return (double)*(const uint64_t *)at;
    case GENERATION_FIELD_BOOL: return *(const bool *)at;
    default: return *(const int *)at;
    }
}

// Checks a number. The comparisons are false for NaN.
enum status generation_field_check(const struct generation_field *field, double value)
{
    if (field->type == GENERATION_FIELD_UINT64) return STATUS_OK;
    bool above_min = field->over_min ? value > field->min : value >= field->min;
    if (above_min && value <= field->max) return STATUS_OK;
    const char *word = field->type == GENERATION_FIELD_INT_OR_AUTO ? "auto or " : "";
    if (field->over_min) {
        return status_fail(STATUS_INVALID, "%s %.10g: must be over %.10g and at most %.10g", field->name, value,
                           field->min, field->max);
    }
    if (value < field->min && field->max == INT_MAX)
        return status_fail(STATUS_INVALID, "%s %.10g: must be %.10g or more", field->name, value, field->min);
    return status_fail(STATUS_INVALID, "%s %.10g: must be %sfrom %.10g to %.10g", field->name, value, word, field->min,
                       field->max);
}

static enum status fields_check(const struct generation_field *fields, const void *object)
{
    for (const struct generation_field *f = fields; f->name; f++) {
        double value = generation_field_number(f, object);
        bool optional = f->type == GENERATION_FIELD_OPTIONAL || f->type == GENERATION_FIELD_OPTIONAL_REAL;
        bool absent = optional && value == f->default_value;
        bool word = f->type == GENERATION_FIELD_INT_OR_AUTO && value == CHUNK_TOKENS_AUTO;
        enum status status = absent || word ? STATUS_OK : generation_field_check(f, value);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

int sampling_output_max(const struct sampling *s)
{
    return s->no_output ? 0 : s->max_tokens;
}

static enum status min_tokens_check(const struct sampling *s)
{
    int most = sampling_output_max(s);
    if (!s->max_tokens || s->min_tokens <= most) return STATUS_OK;
    return status_fail(STATUS_INVALID, "min_tokens %d: must be at most max_tokens (%d)", s->min_tokens, most);
}

static enum status stop_ids_check(const struct sampling *s, int vocab_size)
{
    if (s->n_stop_ids < 0 || s->n_stop_ids > STOP_IDS_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: %d given, at most %d are allowed", s->n_stop_ids,
                           STOP_IDS_MAX);
    }
    for (int i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] < 0 || s->stop_ids[i] >= vocab_size) {
            return status_fail(STATUS_INVALID, "stop_token_ids: %d is outside the vocabulary of %d tokens",
                               s->stop_ids[i], vocab_size);
        }
    }
    return STATUS_OK;
}

// Refuses options that decide where the answer ends, because only the grammar decides that.
static enum status grammar_check(const struct sampling *s)
{
    if (s->grammar.kind == GRAMMAR_NONE) return STATUS_OK;
    if (s->min_tokens) return status_fail(STATUS_INVALID, "min_tokens: not allowed with structured output");
    if (s->ignore_eos) return status_fail(STATUS_INVALID, "ignore_eos: not allowed with structured output");
    return grammar_spec_check(&s->grammar);
}

enum status sampling_check(const struct sampling *s, int vocab_size)
{
    enum status status = fields_check(sampling_fields, s);
    if (status == STATUS_OK) status = min_tokens_check(s);
    if (status == STATUS_OK) status = stop_ids_check(s, vocab_size);
    if (status == STATUS_OK) status = grammar_check(s);
    return status == STATUS_OK ? logit_bias_check(&s->logit_bias, vocab_size) : status;
}

enum status prefill_check(const struct prefill *p)
{
    enum status status = fields_check(prefill_fields, p);
    if (status == STATUS_OK && !(p->min_keep_rate >= 0 && p->min_keep_rate < 1))
        return status_fail(STATUS_INVALID, "min_keep_rate %.10g: must be from 0 to below 1", p->min_keep_rate);
    if (status != STATUS_OK || p->pool_window % 2) return status;
    return status_fail(STATUS_INVALID, "pool_window %d: must be odd, 1 is no smoothing", p->pool_window);
}

enum status context_refuse(enum context_words words, int prompt_tokens, bool counted, int context, const char *note)
{
    if (words == CONTEXT_WORDS_ANTHROPIC) // clients parse the two numbers
        return status_fail(STATUS_OUT_OF_RANGE, "prompt is too long: %d tokens > %d maximum", prompt_tokens,
                           context - 1);
    return status_fail(STATUS_OUT_OF_RANGE,
                       "This model's maximum context length is %d tokens%s. However, the prompt is too long (%s%d "
                       "tokens%s): shorten it",
                       context, note, counted ? "" : "over ", prompt_tokens,
                       counted && prompt_tokens == context ? ", which leave no room for an answer" : "");
}

enum status sampling_resolve(struct sampling *s, int prompt_tokens, const struct model_config *config,
                             int default_tokens, const char *name, const struct context_policy *policy)
{
    const char *note = model_config_context_note(config);
    int room = config->max_context - prompt_tokens;
    if (room < !s->no_output) return context_refuse(policy->words, prompt_tokens, true, config->max_context, note);
    if (s->no_output) return min_tokens_check(s);
    if (policy->reduces && s->max_tokens > room && s->min_tokens <= room) s->max_tokens = room;
    if (s->max_tokens > room) {
        return status_fail(
            STATUS_OUT_OF_RANGE,
            "%s %d: with the prompt of %d tokens over the context of %d%s: lower %s to %d or shorten the prompt", name,
            s->max_tokens, prompt_tokens, config->max_context, note, name, room);
    }
    if (!s->max_tokens) s->max_tokens = room < default_tokens ? room : default_tokens;
    return min_tokens_check(s);
}

// --- prefill modes

static const char *const mode_names[] = {"auto", "on", "off", "required"};

const char *prefill_mode_name(enum prefill_mode mode)
{
    return mode_names[mode];
}

bool prefill_mode_parse(const char *name, enum prefill_mode *mode_p)
{
    for (int i = PREFILL_AUTO; i <= PREFILL_REQUIRED; i++) {
        if (strcmp(name, mode_names[i]) != 0) continue;
        *mode_p = i;
        return true;
    }
    return false;
}

bool draft_mode_parse(const char *name, enum draft_mode *mode_p)
{
    bool is_off = strcmp(name, "off") == 0;
    if (!is_off && strcmp(name, "auto") != 0) return false;
    *mode_p = is_off ? DRAFTS_OFF : DRAFTS_AUTO;
    return true;
}

int64_t output_blocks_expected(int64_t max_blocks)
{
    return (max_blocks + 3) / 4;
}

int prefill_chunk_tokens(const struct prefill *p)
{
    return p->paper_exact && p->chunk_tokens == CHUNK_TOKENS_AUTO ? CHUNK_TOKENS_PAPER : p->chunk_tokens;
}

int prefill_keep_budget(int n_chunks, double keep_rate)
{
    // A product like 0.07 * 100 is slightly above the whole number that is meant.
    double chunks = ceil(n_chunks * keep_rate - 1e-9);
    if (chunks < 1) return 1;
    return chunks > n_chunks ? n_chunks : (int)chunks;
}

int prefill_tail_tokens(int tail_tokens, int prompt_tokens)
{
    return tail_tokens < prompt_tokens / 4 ? tail_tokens : prompt_tokens / 4;
}

struct prompt_turn *prompt_turns_copy(const struct prompt_turn *turns, int n)
{
    struct prompt_turn *copy = mem_copy(turns, (size_t)n * sizeof *copy);
    for (int i = 0; i < n; i++)
        copy[i].pinned = mem_copy(turns[i].pinned, (size_t)turns[i].n_pinned * sizeof *copy[i].pinned);
    return copy;
}

void prompt_turns_free(struct prompt_turn *turns, int n)
{
    for (int i = 0; i < n; i++)
        free(turns[i].pinned);
    free(turns);
}
