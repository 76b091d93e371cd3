// SPDX-License-Identifier: Apache-2.0
#include "bench/ruler.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ruler_draft.h"
#include "lib/base/mem.h"

static const struct ruler_rules rules[RULER_TASKS] = {
    [RULER_SINGLE_1] = {"niah_single_1", ruler_write_needles, 1, 128, false},
    [RULER_SINGLE_2] = {"niah_single_2", ruler_write_needles, 1, 128, false},
    [RULER_SINGLE_3] = {"niah_single_3", ruler_write_needles, 1, 128, false},
    [RULER_MULTIKEY_1] = {"niah_multikey_1", ruler_write_needles, 1, 128, false},
    [RULER_MULTIKEY_2] = {"niah_multikey_2", ruler_write_needles, 1, 128, false},
    [RULER_MULTIKEY_3] = {"niah_multikey_3", ruler_write_needles, 1, 128, false},
    [RULER_MULTIVALUE] = {"niah_multivalue", ruler_write_needles, 1, 128, false},
    [RULER_MULTIQUERY] = {"niah_multiquery", ruler_write_needles, 1, 128, false},
    [RULER_VT] = {"vt", ruler_write_variables, 1, 30, false},
    [RULER_CWE] = {"cwe", ruler_write_common_words, 1, 120, false},
    [RULER_FWE] = {"fwe", ruler_write_frequent_words, 64, 50, false},
    [RULER_QA_1] = {"qa_1", ruler_write_questions, 2, 32, true},
    [RULER_QA_2] = {"qa_2", ruler_write_questions, 2, 32, true},
};

const char *ruler_name(enum ruler_task task)
{
    return rules[task].name;
}

bool ruler_parse(const char *name, enum ruler_task *task_p)
{
    for (int t = 0; t < RULER_TASKS; t++)
        if (strcmp(rules[t].name, name) == 0) {
            *task_p = (enum ruler_task)t;
            return true;
        }
    return false;
}

// ---- one draft ------------------------------------------------------------------------------------------------------

void ruler_document_free(struct ruler_document *document)
{
    for (int i = 0; i < document->n_answers; i++)
        free(document->answers[i]);
    free(document->answers);
    free(document->prompt);
    *document = (struct ruler_document){0};
}

static enum status document_count(const struct ruler_request *request, size_t size, struct ruler_document *document)
{
    int32_t *ids;
    if (!request->tokenizer) {
        document->tokens = (int)((double)size / request->characters_per_token) + 1;
        return STATUS_OK;
    }
    TRY(tokenizer_encode(request->tokenizer, document->prompt, size, TOKENIZER_ADD_SPECIAL, &ids, &document->tokens));
    free(ids);
    return STATUS_OK;
}

static enum status draft_write(const struct ruler_request *request, int units, struct ruler_document *document)
{
    const struct ruler_rules *rule = &rules[request->task];
    struct ruler_draft d = {.request = request, .units = units, .document = document};
    size_t size = 0;
    *document = (struct ruler_document){.any = rule->any, .answer_tokens = rule->answer_tokens};
    d.random = random_stream(request->seed ^ (uint64_t)(request->task + 1) << 48,
                             (uint64_t)request->tokens << 32 | request->number);
    d.out = open_memstream(&document->prompt, &size);
    if (!d.out) return status_fail(STATUS_INTERNAL, "no memory for a document");
    rule->write(&d);
    if (fclose(d.out)) return status_fail(STATUS_INTERNAL, "no memory for a document");
    return document_count(request, size, document);
}

// ---- the length -----------------------------------------------------------------------------------------------------

// The search for the largest document that fits. Documents of fewer units are shorter, apart from a few tokens.
struct ruler_search {
    const struct ruler_request *request;
    int room;                   // tokens of the prompt
    int fits, exceeds;          // units; exceeds: INT_MAX until a document was too long
    struct ruler_document best; // the document of `fits` units
};

static enum status search_try(struct ruler_search *s, int units)
{
    struct ruler_document document;
    enum status status = draft_write(s->request, units, &document);
    if (status == STATUS_OK && document.tokens <= s->room) {
        ruler_document_free(&s->best);
        s->best = document;
        s->fits = units;
        return STATUS_OK;
    }
    ruler_document_free(&document);
    s->exceeds = units;
    return status;
}

// Returns the next number of units, from the tokens per unit of the best document so far.
static int search_next(const struct ruler_search *s, int shortest_tokens, int units_min, int units_max)
{
    const double grown = s->best.tokens - shortest_tokens;
    const double per_unit = grown > 0 ? grown / (s->fits - units_min) : 16;
    double next = s->fits + (s->room - s->best.tokens) / per_unit;
    const int last = s->exceeds == INT_MAX ? units_max : s->exceeds - 1;
    if (s->exceeds != INT_MAX && next > last) next = s->fits + (s->exceeds - s->fits) / 2.0;
    if (next > last) next = last;
    return next < s->fits + 1 ? s->fits + 1 : (int)next;
}

static enum status search_run(struct ruler_search *s, int units_min, int units_max)
{
    enum { TRIES = 16 };
    const struct ruler_request *request = s->request;
    TRY(search_try(s, units_min));
    if (s->exceeds != INT_MAX)
        return status_fail(STATUS_INVALID, "task %s has no room in %d tokens", ruler_name(request->task),
                           request->tokens);
    const int shortest_tokens = s->best.tokens, close = s->room / 200;
    for (int k = 0; k < TRIES && s->room - s->best.tokens > close; k++) {
        if (s->exceeds - 1 <= s->fits || s->fits >= units_max) break;
        TRY(search_try(s, search_next(s, shortest_tokens, units_min, units_max)));
    }
    if (s->exceeds == INT_MAX && s->fits >= units_max && s->best.tokens < s->room * 9 / 10)
        return status_fail(STATUS_INVALID, "task %s: the %d passages of the file are too few for %d tokens",
                           ruler_name(request->task), units_max, request->tokens);
    return STATUS_OK;
}

enum status ruler_make(const struct ruler_request *request, struct ruler_document *document_p)
{
    *document_p = (struct ruler_document){0};
    if (request->tokens < RULER_TOKENS_MIN || request->tokens > RULER_TOKENS_MAX)
        return status_fail(STATUS_INVALID, "a document of %d tokens: RULER's tasks have %d to %d", request->tokens,
                           RULER_TOKENS_MIN, RULER_TOKENS_MAX);
    struct ruler_search s = {.request = request, .exceeds = INT_MAX};
    s.room = request->tokens - rules[request->task].answer_tokens;
    enum status status = search_run(&s, rules[request->task].units_min, ruler_units_max(request));
    if (status != STATUS_OK) {
        ruler_document_free(&s.best);
        return status;
    }
    *document_p = s.best;
    return STATUS_OK;
}

// ---- scores and rows ------------------------------------------------------------------------------------------------

double ruler_score(const struct ruler_document *document, const char *answer)
{
    int found = 0;
    for (int i = 0; i < document->n_answers; i++)
        found += strcasestr(answer, document->answers[i]) != NULL;
    if (document->any) return found > 0;
    return (double)found / document->n_answers;
}

json_t *ruler_row(const struct ruler_request *request, const struct ruler_document *document)
{
    char *id = mem_format("%s-%llu-%d-%llu", ruler_name(request->task), (unsigned long long)request->seed,
                          request->tokens, (unsigned long long)request->number);
    const char *prefix = document->prompt + strlen(document->prompt) - document->prefix_bytes;
    json_t *answers = json_array();
    for (int i = 0; i < document->n_answers; i++)
        json_array_append_new(answers, json_string(document->answers[i]));
    json_t *row =
        json_pack("{s:s,s:s,s:s,s:i,s:s,s:s,s:s,s:o,s:s,s:i}", "id", id, "task", ruler_name(request->task), "form",
                  "plain", "tokens", document->tokens, "length", request->tokenizer ? "counted" : "estimated", "prompt",
                  document->prompt, "answer_prefix", prefix, "answers", answers, "match", document->any ? "any" : "all",
                  "max_tokens", document->answer_tokens);
    free(id);
    return row;
}
