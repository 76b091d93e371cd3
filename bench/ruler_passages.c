// SPDX-License-Identifier: Apache-2.0
// Reads passages and questions from a file in the JSON form of SQuAD ({"data": [{"paragraphs": [...]}]}) or HotpotQA
// ([{"question", "answer", "supporting_facts", "context"}]).
#include "bench/ruler_passages.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static int passage_add(struct ruler_passages *file, char *text)
{
    MEM_GROW(file->passages, file->n_passages, file->passage_room);
    file->passages[file->n_passages] = text;
    return file->n_passages++;
}

static struct ruler_question *question_add(struct ruler_passages *file, const char *text)
{
    MEM_GROW(file->questions, file->n_questions, file->question_room);
    struct ruler_question *question = &file->questions[file->n_questions++];
    *question = (struct ruler_question){.text = mem_string(text)};
    return question;
}

static void question_add_answer(struct ruler_question *question, const char *text)
{
    question->answers = mem_resize(question->answers, (size_t)question->n_answers + 1, sizeof *question->answers);
    question->answers[question->n_answers++] = mem_string(text);
}

static void question_need(struct ruler_question *question, int passage)
{
    question->needed = mem_resize(question->needed, (size_t)question->n_needed + 1, sizeof *question->needed);
    question->needed[question->n_needed++] = passage;
}

// ---- SQuAD ----------------------------------------------------------------------------------------------------------

static enum status squad_add_question(struct ruler_passages *file, int passage, const json_t *qa)
{
    const json_t *text = json_object_get(qa, "question"), *answers = json_object_get(qa, "answers");
    if (!json_is_string(text)) return status_fail(STATUS_INVALID, "a question has no text");
    if (!json_array_size(answers)) return STATUS_OK; // a question without an answer in the passage
    struct ruler_question *question = question_add(file, json_string_value(text));
    size_t i;
    const json_t *answer;
    json_array_foreach(answers, i, answer)
    {
        const char *words = json_string_value(json_object_get(answer, "text"));
        if (!words || !*words)
            return status_fail(STATUS_INVALID, "question '%s': an answer has no text", question->text);
        question_add_answer(question, words);
    }
    question_need(question, passage);
    return STATUS_OK;
}

static enum status squad_read(struct ruler_passages *file, const json_t *data)
{
    size_t a, p, q;
    const json_t *article, *paragraph, *qa;
    json_array_foreach(data, a, article)
    {
        json_array_foreach(json_object_get(article, "paragraphs"), p, paragraph)
        {
            const char *context = json_string_value(json_object_get(paragraph, "context"));
            if (!context) return status_fail(STATUS_INVALID, "a paragraph has no context");
            const int passage = passage_add(file, mem_string(context));
            json_array_foreach(json_object_get(paragraph, "qas"), q, qa) TRY(squad_add_question(file, passage, qa));
        }
    }
    return STATUS_OK;
}

// ---- HotpotQA -------------------------------------------------------------------------------------------------------

static bool hotpot_supports(const json_t *row, const char *title)
{
    size_t i;
    const json_t *fact;
    json_array_foreach(json_object_get(row, "supporting_facts"), i, fact)
    {
        const char *supporting = json_string_value(json_array_get(fact, 0));
        if (supporting && strcmp(supporting, title) == 0) return true;
    }
    return false;
}

static char *hotpot_passage(const char *title, const json_t *sentences)
{
    size_t i;
    const json_t *sentence;
    char *text = mem_format("%s\n", title);
    json_array_foreach(sentences, i, sentence)
    {
        const char *words = json_string_value(sentence);
        char *longer = mem_format("%s%s", text, words ? words : "");
        free(text);
        text = longer;
    }
    return text;
}

static enum status hotpot_add_row(struct ruler_passages *file, const json_t *row)
{
    const char *text = json_string_value(json_object_get(row, "question"));
    const char *answer = json_string_value(json_object_get(row, "answer"));
    if (!text || !answer || !*answer) return status_fail(STATUS_INVALID, "a row has no question or no answer");
    struct ruler_question *question = question_add(file, text);
    question_add_answer(question, answer);
    size_t i;
    const json_t *pair;
    json_array_foreach(json_object_get(row, "context"), i, pair)
    {
        const char *title = json_string_value(json_array_get(pair, 0));
        if (!title) return status_fail(STATUS_INVALID, "question '%s': a passage has no title", text);
        const int passage = passage_add(file, hotpot_passage(title, json_array_get(pair, 1)));
        if (hotpot_supports(row, title)) question_need(question, passage);
    }
    if (question->n_needed) return STATUS_OK;
    return status_fail(STATUS_INVALID, "question '%s': no passage is a supporting fact", text);
}

static enum status hotpot_read(struct ruler_passages *file, const json_t *rows)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) TRY(hotpot_add_row(file, row));
    return STATUS_OK;
}

// ---- the file -------------------------------------------------------------------------------------------------------

static enum status root_read(struct ruler_passages *file, const json_t *root)
{
    const json_t *data = json_object_get(root, "data");
    if (!json_is_array(root) && !json_is_array(data))
        return status_fail(STATUS_INVALID, "must be SQuAD's {\"data\": [...]} or HotpotQA's [...]");
    TRY(json_is_array(root) ? hotpot_read(file, root) : squad_read(file, data));
    if (file->n_questions) return STATUS_OK;
    return status_fail(STATUS_INVALID, "has no question with an answer");
}

enum status ruler_passages_read(const char *path, struct ruler_passages **passages_p)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root) return status_fail(STATUS_INVALID, "%s: line %d: %s", path, error.line, error.text);
    struct ruler_passages *file = mem_alloc(sizeof *file);
    enum status status = root_read(file, root);
    json_decref(root);
    if (status != STATUS_OK) {
        ruler_passages_free(file);
        return status_context(status, "%s", path);
    }
    *passages_p = file;
    return STATUS_OK;
}

void ruler_passages_free(struct ruler_passages *passages)
{
    if (!passages) return;
    for (int i = 0; i < passages->n_passages; i++)
        free(passages->passages[i]);
    for (int i = 0; i < passages->n_questions; i++) {
        struct ruler_question *question = &passages->questions[i];
        for (int a = 0; a < question->n_answers; a++)
            free(question->answers[a]);
        free(question->answers);
        free(question->needed);
        free(question->text);
    }
    free(passages->passages);
    free(passages->questions);
    free(passages);
}
