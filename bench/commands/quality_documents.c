// SPDX-License-Identifier: Apache-2.0
// The documents of `forepack bench prefill-quality`: classes of bench/tasks.h, then the tasks of bench/ruler.h.
#include <stdlib.h>
#include <string.h>

#include "bench/commands/quality.h"
#include "lib/base/mem.h"

bool quality_class_is_ruler(int class)
{
    return class >= TASKS;
}

const char *quality_class_name(int class)
{
    return quality_class_is_ruler(class) ? ruler_name((enum ruler_task)(class - TASKS)) : task_name((enum task) class);
}

bool quality_class_runs(const struct quality *q, int class)
{
    const char *task = q->flags->task;
    if (strcmp(task, "all") == 0) return !quality_class_is_ruler(class);
    if (strcmp(task, "ruler") == 0) return quality_class_is_ruler(class);
    return strcmp(task, quality_class_name(class)) == 0;
}

static enum status task_document_make(const struct quality *q, int class, int tokens, int64_t number,
                                      struct quality_document *d)
{
    const struct task_request request = {.task = (enum task) class,
                                         .chat = strcmp(q->flags->form, "chat") == 0,
                                         .tokens = tokens,
                                         .seed = (uint64_t)q->flags->seed,
                                         .number = (uint64_t)number,
                                         .questions = 1};
    TRY(task_make(q->tokenizer, &request, &d->task));
    d->ids = mem_copy(d->task.ids, (size_t)d->task.n * sizeof *d->ids);
    d->n = d->task.n;
    d->max_tokens = d->task.questions[0].n_answer;
    return STATUS_OK;
}

static enum status ruler_document_make(const struct quality *q, int class, int tokens, int64_t number,
                                       struct quality_document *d)
{
    const struct ruler_request request = {.task = (enum ruler_task)(class - TASKS),
                                          .tokens = tokens,
                                          .seed = (uint64_t)q->flags->seed,
                                          .number = (uint64_t)number,
                                          .tokenizer = q->tokenizer,
                                          .passages = q->passages};
    TRY(ruler_make(&request, &d->ruler));
    d->max_tokens = d->ruler.answer_tokens;
    return tokenizer_encode(q->tokenizer, d->ruler.prompt, strlen(d->ruler.prompt), TOKENIZER_ADD_SPECIAL, &d->ids,
                            &d->n);
}

enum status quality_document_make(const struct quality *q, int class, int tokens, int64_t number,
                                  struct quality_document *d)
{
    *d = (struct quality_document){.class = class};
    return quality_class_is_ruler(class) ? ruler_document_make(q, class, tokens, number, d)
                                         : task_document_make(q, class, tokens, number, d);
}

void quality_document_free(struct quality_document *d)
{
    task_document_free(&d->task);
    ruler_document_free(&d->ruler);
    free(d->ids);
}

enum status quality_document_score(const struct quality *q, const struct quality_document *d, const int32_t *answer,
                                   int n, bool stopped, double *score_p)
{
    if (!quality_class_is_ruler(d->class)) {
        const struct task_question *question = &d->task.questions[0];
        *score_p = stopped && n == question->n_answer - 1 &&
                   memcmp(answer, question->answer_ids, (size_t)n * sizeof *answer) == 0;
        return STATUS_OK;
    }
    char *text;
    TRY(tokenizer_decode(q->tokenizer, answer, n, TOKENIZER_SKIP_SPECIAL | TOKENIZER_CONTINUATION, &text, NULL));
    *score_p = ruler_score(&d->ruler, text);
    free(text);
    return STATUS_OK;
}
