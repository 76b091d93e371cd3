// SPDX-License-Identifier: Apache-2.0
#include "bench/draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/facts.h"
#include "lib/base/mem.h"

// ---- the frame: what surrounds the text and the questions -----------------------------------------------------------

#define SYSTEM_MESSAGE "<|im_start|>system\nYou answer questions about the text.<|im_end|>\n"

static const char *frame_head(const struct draft *d)
{
    if (!d->request->chat) return "";
    return d->system ? SYSTEM_MESSAGE "<|im_start|>user\n" : "<|im_start|>user\n";
}

// Returns the question in the form in which it follows the text. The caller frees it.
static char *frame_question(const struct draft *d, const char *question)
{
    return d->request->chat ? mem_format("%s<|im_end|>\n<|im_start|>assistant\n", question)
                            : mem_format("Question: %s\nAnswer:", question);
}

static unsigned frame_flags(const struct draft *d)
{
    return d->request->chat ? TOKENIZER_PARSE_SPECIAL : 0;
}

static unsigned frame_prompt_flags(const struct draft *d)
{
    return d->request->chat ? TOKENIZER_PARSE_SPECIAL : TOKENIZER_ADD_SPECIAL;
}

static int draft_tokens(struct draft *d, const char *text, unsigned flags)
{
    int32_t *ids;
    int n = 0;
    if (d->status != STATUS_OK) return 0;
    d->status = tokenizer_encode(d->tokenizer, text, strlen(text), flags, &ids, &n);
    if (d->status == STATUS_OK) free(ids);
    return n;
}

static int frame_tokens(struct draft *d, const char *question)
{
    char *asked = frame_question(d, question), *frame = mem_format("%s%s", frame_head(d), asked);
    int n = draft_tokens(d, frame, frame_prompt_flags(d));
    free(asked);
    free(frame);
    return n;
}

void draft_reserve(struct draft *d, int tokens)
{
    d->room = d->request->tokens - tokens - (d->request->chat ? frame_tokens(d, "") : 0);
}

// ---- lines ----------------------------------------------------------------------------------------------------------

bool draft_plant(struct draft *d, int item, char *text)
{
    char *spaced = mem_format(" %s", text);
    int n = draft_tokens(d, spaced, 0);
    free(spaced);
    if (d->status != STATUS_OK || d->tokens + n > d->room) {
        free(text);
        return false;
    }
    MEM_GROW(d->lines, d->n_lines, d->capacity);
    d->lines[d->n_lines++] = (struct draft_line){text, item};
    d->tokens += n;
    return true;
}

void draft_need(struct draft *d, int item, char *text)
{
    if (!draft_plant(d, item, text) && d->status == STATUS_OK)
        d->status = status_fail(STATUS_INVALID, "a %s document of %d tokens has no room for what its question needs",
                                task_name(d->request->task), d->request->tokens);
}

void draft_need_head(struct draft *d, int item, char *text)
{
    draft_need(d, item, text);
    d->n_head = d->n_lines;
}

void draft_plant_other_facts(struct draft *d, int item)
{
    enum { OTHERS_MIN = 3, OTHERS_MAX = 6 };
    struct fact facts[OTHERS_MAX];
    int n = OTHERS_MIN + random_below(&d->random, OTHERS_MAX - OTHERS_MIN + 1);
    facts_add(&d->random, facts, 0, n);
    for (int i = 0; i < n && draft_plant(d, item + i, fact_sentence(&d->random, &facts[i])); i++)
        ;
}

void draft_fill(struct draft *d)
{
    while (draft_plant(d, -1, town_sentence(&d->random)))
        ;
    for (int i = d->n_lines - 1; i > d->n_head; i--) {
        int j = d->n_head + random_below(&d->random, i + 1 - d->n_head);
        struct draft_line line = d->lines[i];
        d->lines[i] = d->lines[j];
        d->lines[j] = line;
    }
}

int draft_count(const struct draft *d, int item)
{
    int n = 0;
    for (int i = 0; i < d->n_lines; i++)
        n += d->lines[i].item == item;
    return n;
}

// ---- questions ------------------------------------------------------------------------------------------------------

void draft_ask(struct draft *d, char *text, char *answer, uint64_t needs)
{
    if (!d->n_lines) d->room = d->request->tokens - frame_tokens(d, text);
    d->questions[d->n_questions++] = (struct draft_question){text, answer, needs};
}

bool draft_wants_questions(const struct draft *d)
{
    return d->status == STATUS_OK && d->n_questions < d->request->questions;
}

void draft_free(struct draft *d)
{
    for (int i = 0; i < d->n_lines; i++)
        free(d->lines[i].text);
    for (int i = 0; i < d->n_questions; i++) {
        free(d->questions[i].text);
        free(d->questions[i].answer);
    }
    free(d->lines);
    free(d->questions);
}

// ---- the document ---------------------------------------------------------------------------------------------------

static bool line_is_paragraph(const struct draft *d, int i)
{
    return i < d->n_head || strchr(d->lines[i].text, '\n');
}

// Returns the whole prompt. places [n_lines] become the bytes of the lines, with the blank before each.
static char *draft_prompt(struct draft *d, struct text_range *places)
{
    char *prompt = NULL, *question = frame_question(d, d->questions[0].text);
    size_t size;
    FILE *out = open_memstream(&prompt, &size);
    fputs(frame_head(d), out);
    bool start = true;
    for (int i = 0; i < d->n_lines; i++) {
        bool paragraph_ends = i == d->n_lines - 1 || line_is_paragraph(d, i) || line_is_paragraph(d, i + 1) ||
                              random_unit(&d->random) < 0.12;
        places[i].start = (size_t)ftell(out);
        fprintf(out, "%s%s", start ? "" : " ", d->lines[i].text);
        places[i].end = (size_t)ftell(out);
        if (paragraph_ends) fputs("\n\n", out);
        start = paragraph_ends;
    }
    fputs(question, out);
    fclose(out);
    free(question);
    return prompt;
}

// Returns the tokens of a place in a text. The tokens start at the bytes `starts` [n].
static struct token_range place_tokens(struct text_range place, const size_t *starts, int n)
{
    int first = 0, last;
    for (int high = n - 1; first < high;) { // finds the first token that ends after the place's start
        int middle = first + (high - first) / 2;
        if (starts[middle + 1] > place.start)
            high = middle;
        else
            first = middle + 1;
    }
    for (last = first; last + 1 < n && starts[last + 1] < place.end;)
        last++;
    return (struct token_range){first, last};
}

static void document_locate(const struct draft *d, const struct draft_question *q, const struct text_range *places,
                            const size_t *starts, int n, struct task_question *out)
{
    out->spans = mem_alloc_array((size_t)d->n_lines, sizeof *out->spans);
    for (int i = 0; i < d->n_lines; i++)
        if (d->lines[i].item >= 0 && q->needs & DRAFT_ITEM(d->lines[i].item))
            out->spans[out->n_spans++] = place_tokens(places[i], starts, n);
}

static enum status draft_end_token(const struct draft *d, int32_t *end_p)
{
    *end_p = tokenizer_eos(d->tokenizer);
    if (!d->request->chat)
        return *end_p >= 0 ? STATUS_OK : status_fail(STATUS_UNSUPPORTED, "the tokenizer has no EOS token");
    int32_t *ids;
    int n;
    static const char marks[] = "<|im_start|><|im_end|>";
    TRY(tokenizer_encode(d->tokenizer, marks, strlen(marks), TOKENIZER_PARSE_SPECIAL, &ids, &n));
    *end_p = ids[n - 1];
    free(ids);
    return n == 2 ? STATUS_OK
                  : status_fail(STATUS_UNSUPPORTED, "the chat form needs a tokenizer with <|im_start|> and <|im_end|>");
}

static enum status document_add_answer(const struct draft *d, const struct draft_question *q, int32_t end,
                                       struct task_question *out)
{
    out->answer = mem_string(q->answer + (d->request->chat ? strspn(q->answer, "\n") : 0));
    if (d->request->chat && *out->answer == ' ' && q->answer[0] == ' ')
        memmove(out->answer, out->answer + 1, strlen(out->answer));
    TRY(tokenizer_encode(d->tokenizer, out->answer, strlen(out->answer), 0, &out->answer_ids, &out->n_answer));
    out->answer_ids = mem_resize(out->answer_ids, (size_t)out->n_answer + 1, sizeof *out->answer_ids);
    out->answer_ids[out->n_answer++] = end;
    return STATUS_OK;
}

// Adds the turn of a later question. In the plain form, the token that ends an answer is not text, so the turn begins
// with the empty line that separates questions.
static enum status document_add_turn(const struct draft *d, const struct draft_question *q, struct task_question *out)
{
    char *asked = frame_question(d, q->text);
    out->turn = mem_format("%s%s", d->request->chat ? "\n<|im_start|>user\n" : "\n\n", asked);
    free(asked);
    return tokenizer_encode(d->tokenizer, out->turn, strlen(out->turn), frame_flags(d), &out->turn_ids, &out->n_turn);
}

static enum status document_encode(struct draft *d, const struct text_range *places, struct task_document *document)
{
    size_t *starts;
    int32_t end;
    TRY(draft_end_token(d, &end));
    TRY(tokenizer_encode_untrusted(d->tokenizer, document->prompt, strlen(document->prompt), frame_prompt_flags(d),
                                   NULL, 0, INT32_MAX, &document->ids, &starts, &document->n));
    enum status status = STATUS_OK;
    for (int i = 0; i < d->n_questions && status == STATUS_OK; i++) {
        struct task_question *out = &document->questions[document->n_questions++];
        document_locate(d, &d->questions[i], places, starts, document->n, out);
        status = document_add_answer(d, &d->questions[i], end, out);
        if (status == STATUS_OK && i) status = document_add_turn(d, &d->questions[i], out);
    }
    free(starts);
    return status;
}

enum status draft_finish(struct draft *d, struct task_document *document)
{
    if (d->status != STATUS_OK) return d->status;
    struct text_range *places = mem_alloc_array((size_t)d->n_lines, sizeof *places);
    document->prompt = draft_prompt(d, places);
    document->questions = mem_alloc_array((size_t)d->n_questions, sizeof *document->questions);
    enum status status = document_encode(d, places, document);
    free(places);
    return status;
}
