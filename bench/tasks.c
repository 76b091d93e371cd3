// SPDX-License-Identifier: Apache-2.0
#include "bench/tasks.h"

#include <stdlib.h>

#include "bench/draft.h"
#include "lib/base/mem.h"

static void (*const write_fns[TASKS])(struct draft *d) = {
    [TASK_NEEDLE] = task_needle, [TASK_FACTS] = task_facts, [TASK_TWO_HOP] = task_two_hop,
    [TASK_COUNT] = task_count,   [TASK_COPY] = task_copy,   [TASK_INSTRUCTION] = task_instruction,
};

enum status task_make(const struct tokenizer *tokenizer, const struct task_request *request,
                      struct task_document *document_p)
{
    *document_p = (struct task_document){0};
    if (request->tokens < TASK_TOKENS_MIN)
        return status_fail(STATUS_INVALID, "a document of %d tokens: must be %d or more", request->tokens,
                           TASK_TOKENS_MIN);
    struct draft d = {.tokenizer = tokenizer, .request = request};
    d.random =
        random_stream(request->seed ^ (uint64_t)request->task << 56, (uint64_t)request->tokens << 32 | request->number);
    d.questions = mem_alloc_array((size_t)request->questions, sizeof *d.questions);
    if (request->chat) d.system = random_below(&d.random, 2);
    write_fns[request->task](&d);
    enum status status = draft_finish(&d, document_p);
    if (status == STATUS_OK && document_p->n > request->tokens)
        status = status_fail(STATUS_UNSUPPORTED,
                             "the document has %d tokens instead of %d: the tokenizer joins or splits sentences",
                             document_p->n, request->tokens);
    draft_free(&d);
    if (status != STATUS_OK) task_document_free(document_p);
    return status;
}

void task_document_free(struct task_document *document)
{
    for (int i = 0; i < document->n_questions; i++) {
        struct task_question *q = &document->questions[i];
        free(q->turn);
        free(q->turn_ids);
        free(q->answer);
        free(q->answer_ids);
        free(q->spans);
    }
    free(document->questions);
    free(document->prompt);
    free(document->ids);
    *document = (struct task_document){0};
}

// ---- rows -----------------------------------------------------------------------------------------------------------

static json_t *row_ids(const int32_t *ids, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static void row_add_answer(json_t *row, const struct task_question *q, bool token_ids)
{
    json_t *spans = json_array();
    for (int i = 0; i < q->n_spans; i++)
        json_array_append_new(spans, json_pack("[i,i]", q->spans[i].first, q->spans[i].last));
    json_object_set_new(row, "answer", json_string(q->answer));
    json_object_set_new(row, "spans", spans);
    if (token_ids) json_object_set_new(row, "answer_ids", row_ids(q->answer_ids, q->n_answer));
}

static json_t *row_questions(const struct task_document *document, bool token_ids)
{
    json_t *questions = json_array();
    for (int i = 1; i < document->n_questions; i++) {
        const struct task_question *q = &document->questions[i];
        json_t *question = json_pack("{s:s}", "question", q->turn);
        if (token_ids) json_object_set_new(question, "question_ids", row_ids(q->turn_ids, q->n_turn));
        row_add_answer(question, q, token_ids);
        json_array_append_new(questions, question);
    }
    return questions;
}

json_t *task_row(const struct task_request *request, const struct task_document *document, bool token_ids)
{
    const char *task = task_name(request->task), *form = request->chat ? "chat" : "plain";
    char *id = mem_format("%s-%s-%llu-%d-%llu", task, form, (unsigned long long)request->seed, request->tokens,
                          (unsigned long long)request->number);
    json_t *row = json_pack("{s:s,s:s,s:s,s:i,s:s}", "id", id, "task", task, "form", form, "tokens", document->n,
                            "prompt", document->prompt);
    free(id);
    if (token_ids) json_object_set_new(row, "token_ids", row_ids(document->ids, document->n));
    row_add_answer(row, &document->questions[0], token_ids);
    if (request->questions > 1) json_object_set_new(row, "questions", row_questions(document, token_ids));
    return row;
}
