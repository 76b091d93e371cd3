// SPDX-License-Identifier: Apache-2.0
// forepack bench documents: task documents as JSON lines, to train, calibrate or ask a model with.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/bench.h"
#include "bench/ruler.h"
#include "bench/tasks.h"
#include "cli/request.h"
#include "lib/base/options.h"
#include "lib/base/random.h"

static struct {
    char *model, *task, *form, *tokens, *passages;
    int64_t count, first, seed, questions;
    double characters_per_token;
    bool token_ids;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .default_text = "deploy/demo-model/main",
     .placeholder = "DIR", .help = "directory of the tokenizer"},
    {.name = "task", .type = OPTION_CHOICE, .value = &o.task, .default_text = "all", .choices = TASK_NAMES "|all|ruler|" RULER_NAMES,
     .help = "class of the documents; all, ruler: one of each of the six or thirteen in turn"},
    {.name = "passages", .type = OPTION_STRING, .value = &o.passages, .placeholder = "FILE",
     .help = "qa_1, qa_2: SQuAD's or HotpotQA's JSON file, in place of passages that this command writes"},
    {.name = "characters-per-token", .type = OPTION_REAL, .value = &o.characters_per_token, .default_text = "0", .max = 16,
     .help = "ruler: estimate lengths by this number; 0 counts tokens with the tokenizer"},
    {.name = "form", .type = OPTION_CHOICE, .value = &o.form, .default_text = "plain", .choices = "plain|chat|mixed",
     .help = "plain text, ChatML, or one of both at random"},
    {.name = "count", .type = OPTION_INT, .value = &o.count, .default_text = "10", .min = 1, .max = UINT32_MAX,
     .help = "number of documents"},
    {.name = "first", .type = OPTION_INT, .value = &o.first, .default_text = "0", .max = UINT32_MAX,
     .help = "number of the first document, to write a large set in parts"},
    {.name = "tokens", .type = OPTION_STRING, .value = &o.tokens, .default_text = "1000", .unit = "tokens",
     .help = "prompt lengths: numbers in turn, comma-separated, or a range such as 256-4000; each document then has a "
             "random length of the range"},
    {.name = "seed", .type = OPTION_INT, .value = &o.seed, .default_text = "2000", .max = 1e15,
     .help = "seed of the documents: below 1000 for evaluation, below 2000 for calibration, from 2000 for training"},
    {.name = "questions", .type = OPTION_INT, .value = &o.questions, .default_text = "1", .min = 1,
     .max = TASK_QUESTIONS_MAX, .help = "most questions about each document"},
    {.name = "token-ids", .type = OPTION_BOOL, .value = &o.token_ids, .help = "add the token ids to the text"},
    {0},
};
// clang-format on

struct lengths {
    struct count_list counts;
    int low, high; // limits of a range; 0: no range
};

static enum status lengths_parse(const char *text, struct lengths *lengths)
{
    int end = 0;
    if (!strchr(text, '-')) return count_list_parse("tokens", text, TASK_TOKENS_MIN, TASK_TOKENS_MAX, &lengths->counts);
    if (sscanf(text, "%7d-%7d%n", &lengths->low, &lengths->high, &end) != 2 || text[end] ||
        lengths->low < TASK_TOKENS_MIN || lengths->high < lengths->low || lengths->high > TASK_TOKENS_MAX)
        return status_fail(STATUS_INVALID, "--tokens '%s': must be a range A-B with %d <= A <= B <= %d", text,
                           TASK_TOKENS_MIN, TASK_TOKENS_MAX);
    return STATUS_OK;
}

// Returns the request of document `number`. Task, form and length depend only on the number, so parts of a set fit
// together.
static struct task_request document_request(const struct lengths *lengths, int64_t number)
{
    struct random_source r = random_stream(~(uint64_t)o.seed, (uint64_t)number);
    struct task_request request = {.seed = (uint64_t)o.seed, .number = (uint64_t)number, .questions = (int)o.questions};
    int64_t turn = number;
    if (!task_parse(o.task, &request.task)) {
        request.task = (enum task)(number % TASKS);
        turn = number / TASKS;
    }
    const int mixed = random_below(&r, 2);
    request.chat = strcmp(o.form, "mixed") == 0 ? mixed : strcmp(o.form, "chat") == 0;
    request.tokens = lengths->low ? lengths->low + random_below(&r, lengths->high - lengths->low + 1)
                                  : lengths->counts.count[turn % lengths->counts.n];
    return request;
}

static enum status document_write(const struct tokenizer *tokenizer, const struct task_request *request)
{
    struct task_document document;
    TRY(task_make(tokenizer, request, &document));
    json_t *row = task_row(request, &document, o.token_ids);
    bool written = json_dumpf(row, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
    json_decref(row);
    task_document_free(&document);
    return written ? STATUS_OK : status_fail(STATUS_INTERNAL, "the documents could not be written to standard output");
}

// ---- RULER ----------------------------------------------------------------------------------------------------------

static bool task_is_ruler(void)
{
    enum ruler_task task;
    return strcmp(o.task, "ruler") == 0 || ruler_parse(o.task, &task);
}

static struct ruler_request ruler_request_of(const struct lengths *lengths, int64_t number)
{
    struct ruler_request request = {.seed = (uint64_t)o.seed, .characters_per_token = o.characters_per_token};
    struct random_source r = random_stream(~(uint64_t)o.seed, (uint64_t)number);
    int64_t turn = number;
    if (!ruler_parse(o.task, &request.task)) {
        request.task = (enum ruler_task)(number % RULER_TASKS);
        turn = number / RULER_TASKS;
    }
    request.number = (uint64_t)number;
    request.tokens = lengths->low ? lengths->low + random_below(&r, lengths->high - lengths->low + 1)
                                  : lengths->counts.count[turn % lengths->counts.n];
    return request;
}

static enum status ruler_write(const struct ruler_request *request)
{
    struct ruler_document document;
    TRY(ruler_make(request, &document));
    json_t *row = ruler_row(request, &document);
    bool written = json_dumpf(row, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
    json_decref(row);
    ruler_document_free(&document);
    return written ? STATUS_OK : status_fail(STATUS_INTERNAL, "the documents could not be written to standard output");
}

static enum status ruler_write_all(const struct lengths *lengths)
{
    struct tokenizer *tokenizer = NULL;
    struct ruler_passages *passages = NULL;
    enum status status = STATUS_OK;
    if (strcmp(o.form, "plain") != 0 || o.token_ids || o.questions > 1)
        return status_fail(STATUS_INVALID, "--task %s: has the plain form and one question, without token ids", o.task);
    if (o.passages) status = ruler_passages_read(o.passages, &passages);
    if (status == STATUS_OK && o.characters_per_token == 0) status = tokenizer_open(o.model, &tokenizer);
    for (int64_t i = o.first; i < o.first + o.count && status == STATUS_OK; i++) {
        struct ruler_request request = ruler_request_of(lengths, i);
        request.tokenizer = tokenizer;
        request.passages = passages;
        status = ruler_write(&request);
    }
    tokenizer_free(tokenizer);
    ruler_passages_free(passages);
    return status;
}

static enum status documents_write(void)
{
    struct lengths lengths = {0};
    struct tokenizer *tokenizer;
    TRY(lengths_parse(o.tokens, &lengths));
    if (task_is_ruler()) return ruler_write_all(&lengths);
    if (o.passages || o.characters_per_token > 0)
        return status_fail(STATUS_INVALID, "--passages and --characters-per-token are for RULER's tasks");
    TRY(tokenizer_open(o.model, &tokenizer));
    enum status status = STATUS_OK;
    for (int64_t i = o.first; i < o.first + o.count && status == STATUS_OK; i++) {
        struct task_request request = document_request(&lengths, i);
        status = document_write(tokenizer, &request);
    }
    tokenizer_free(tokenizer);
    return status;
}

int bench_documents(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench documents [options]\n"
                 "Documents with questions whose answers can be checked exactly, as JSON lines.",
                 argc, argv, NULL);
    enum status status = documents_write();
    int code = status == STATUS_OK ? 0 : report_failure(status);
    options_free(options);
    return code;
}
