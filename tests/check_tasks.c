// SPDX-License-Identifier: Apache-2.0
// Task documents: a slow reader that knows only the sentence forms finds the answer of every question in the text, and
// the spans contain the sentences that it needed.
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/tasks.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

#define NAME "([A-Z][a-z]+ [A-Z][a-z]+)"

static struct tokenizer *tokenizer;

static void setup(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_msg(tokenizer_open(dir, &tokenizer) == STATUS_OK, "%s", status_message());
    free(dir);
}

static void teardown(void)
{
    tokenizer_free(tokenizer);
}

// ---- a slow reader --------------------------------------------------------------------------------------------------

enum { GROUPS = 3, GROUP_BYTES = 256, NEEDED_MAX = 16 };

struct match {
    char group[GROUPS][GROUP_BYTES]; // 0: the whole match
    size_t end;
};

static bool find(const char *text, const char *pattern, struct match *m)
{
    regex_t regex;
    regmatch_t at[GROUPS];
    ck_assert_int_eq(regcomp(&regex, pattern, REG_EXTENDED), 0);
    bool found = regexec(&regex, text, GROUPS, at, 0) == 0;
    regfree(&regex);
    for (int g = 0; found && g < GROUPS; g++)
        snprintf(m->group[g], GROUP_BYTES, "%.*s", (int)(at[g].rm_eo - at[g].rm_so), text + at[g].rm_so);
    if (found) m->end = (size_t)at[0].rm_eo;
    return found;
}

struct reader {
    const char *text; // without the questions
    char answer[512];
    char needed[NEEDED_MAX][512]; // sentences from which the answer follows
    int n_needed;
};

static void reader_need(struct reader *r, const char *sentence)
{
    ck_assert_int_lt(r->n_needed, NEEDED_MAX);
    snprintf(r->needed[r->n_needed++], sizeof r->needed[0], "%s", sentence);
}

// Finds the only sentence of the given forms and returns its group 1.
static const char *reader_look_up(struct reader *r, struct match *m, char *const forms[3])
{
    int found = 0;
    for (int f = 0; f < 3; f++) {
        struct match again;
        if (!find(r->text, forms[f], m)) continue;
        found++;
        ck_assert(!find(r->text + m->end, forms[f], &again));
        reader_need(r, m->group[0]);
        memmove(m->group[2], m->group[1], GROUP_BYTES);
    }
    ck_assert_msg(found == 1, "%d sentences like %s", found, forms[0]);
    return m->group[2];
}

static void reader_add_fact(struct reader *r, const char *attribute, const char *name)
{
    struct match m;
    char *forms[] = {mem_format("The %s of %s is ([0-9]{4})\\.", attribute, name),
                     mem_format("%s's %s is ([0-9]{4})\\.", name, attribute),
                     mem_format("%s has the %s ([0-9]{4})\\.", name, attribute)};
    strcat(r->answer, reader_look_up(r, &m, forms));
    for (int f = 0; f < 3; f++)
        free(forms[f]);
}

static void read_needle(struct reader *r, const char *question)
{
    struct match m;
    if (find(question, "What is the ([a-z ]+) of " NAME "\\?", &m) ||
        find(question, "Which ([a-z ]+) does " NAME " have\\?", &m))
        reader_add_fact(r, m.group[1], m.group[2]);
    else if (find(question, "What is " NAME "'s ([a-z ]+)\\?", &m))
        reader_add_fact(r, m.group[2], m.group[1]);
    else
        ck_abort_msg("question '%s'", question);
}

static void read_facts(struct reader *r, const char *question)
{
    struct match m;
    int asked = 0;
    bool of = strstr(question, " of ");
    for (; find(question, of ? "the ([a-z ]+) of " NAME : NAME "'s ([a-z]+ (code|number))", &m); asked++) {
        if (asked) strcat(r->answer, ", ");
        reader_add_fact(r, m.group[of ? 1 : 2], m.group[of ? 2 : 1]);
        question += m.end;
    }
    ck_assert_int_ge(asked, 2);
    ck_assert_int_le(asked, 4);
}

static void read_two_hop(struct reader *r, const char *question)
{
    struct match asked, keeper;
    ck_assert(find(question, "What is the ([a-z ]+) of the keeper of the ([a-z ]+)\\?", &asked) ||
              find(question, "Which ([a-z ]+) does the keeper of the ([a-z ]+) have\\?", &asked));
    char *forms[] = {mem_format(NAME " keeps the %s\\.", asked.group[2]),
                     mem_format("The keeper of the %s is " NAME "\\.", asked.group[2]),
                     mem_format("The %s is kept by " NAME "\\.", asked.group[2])};
    reader_add_fact(r, asked.group[1], reader_look_up(r, &keeper, forms));
    for (int f = 0; f < 3; f++)
        free(forms[f]);
}

static void read_count(struct reader *r, const char *question)
{
    struct match asked, m;
    ck_assert(find(question, "How many parcels arrived for " NAME "\\?", &asked) ||
              find(question, "How many parcels did " NAME " get\\?", &asked));
    char *pattern = mem_format("parcel for %s arrived at [a-z ]+\\.", asked.group[1]);
    for (const char *at = r->text; find(at, pattern, &m); at += m.end)
        reader_need(r, m.group[0]);
    ck_assert_int_ge(r->n_needed, 1);
    ck_assert_int_le(r->n_needed, 6);
    sprintf(r->answer, "%d", r->n_needed);
    free(pattern);
}

static void read_copy(struct reader *r, const char *question)
{
    struct match m;
    ck_assert(find(question, "Write the block ([a-z]+_[0-9])\\.", &m) ||
              find(question, "What are the lines of ([a-z]+_[0-9])\\?", &m));
    char *head = mem_format("def %s():", m.group[1]);
    const char *block = strstr(r->text, head), *body = strchr(block, '\n'), *end = strstr(block, "\n\n");
    ck_assert(!strstr(body, head));
    sprintf(r->answer, "%.*s", (int)(end - body), body);
    sprintf(r->needed[r->n_needed++], "%.*s", (int)(end - block), block);
    int lines = 0;
    for (const char *at = body; at < end; at = strchr(at + 1, '\n'))
        lines++;
    ck_assert_int_ge(lines, 3);
    ck_assert_int_le(lines, 6);
    free(head);
}

static void read_instruction(struct reader *r, const char *question)
{
    char v[8];
    const char *first = strstr(r->text, "\n\n");
    char *instruction = mem_format("%.*s", (int)(first - r->text), r->text);
    reader_need(r, instruction);
    read_needle(r, question);
    snprintf(v, sizeof v, "%.4s", r->answer);
    if (strstr(instruction, "backwards"))
        sprintf(r->answer, "%c%c%c%c", v[3], v[2], v[1], v[0]);
    else if (strstr(instruction, "twice"))
        sprintf(r->answer, "%s %s", v, v);
    else if (strstr(instruction, "brackets"))
        sprintf(r->answer, "(%s)", v);
    else
        ck_assert(strstr(instruction, "as usual"));
    free(instruction);
}

static void (*const readers[TASKS])(struct reader *r, const char *question) = {
    [TASK_NEEDLE] = read_needle, [TASK_FACTS] = read_facts, [TASK_TWO_HOP] = read_two_hop,
    [TASK_COUNT] = read_count,   [TASK_COPY] = read_copy,   [TASK_INSTRUCTION] = read_instruction,
};

// ---- documents ------------------------------------------------------------------------------------------------------

static void check_ids(const char *text, unsigned flags, const int32_t *ids, int n)
{
    int32_t *whole;
    int n_whole;
    ck_assert_int_eq(tokenizer_encode(tokenizer, text, strlen(text), flags, &whole, &n_whole), STATUS_OK);
    ck_assert_int_eq(n_whole, n);
    ck_assert_mem_eq(whole, ids, (size_t)n * sizeof *ids);
    free(whole);
}

// Checks that each span contains one of the needed sentences and little more, and that each needed sentence has a span.
static void check_spans(const struct task_document *document, const struct task_question *q, const struct reader *r)
{
    ck_assert_int_eq(q->n_spans, r->n_needed);
    bool used[NEEDED_MAX] = {0};
    for (int s = 0; s < q->n_spans; s++) {
        const struct token_range span = q->spans[s];
        char *text;
        ck_assert_int_ge(span.first, 0);
        ck_assert_int_le(span.first, span.last);
        ck_assert_int_lt(span.last, document->n);
        ck_assert(!s || span.first > q->spans[s - 1].last);
        ck_assert_int_eq(
            tokenizer_decode(tokenizer, document->ids + span.first, span.last - span.first + 1, 0, &text, NULL),
            STATUS_OK);
        bool contains = false;
        for (int i = 0; i < r->n_needed && !contains; i++)
            if (!used[i] && strstr(text, r->needed[i])) used[i] = contains = true;
        ck_assert_msg(contains, "span '%s' has no needed sentence", text);
        ck_assert_msg(strlen(text) < strlen(r->needed[0]) + 160, "span '%s'", text);
        free(text);
    }
}

static void check_question(const struct task_request *request, const struct task_document *document, int i)
{
    const struct task_question *q = &document->questions[i];
    unsigned flags = request->chat ? TOKENIZER_PARSE_SPECIAL : 0;
    // The text ends where the question starts. In the chat form the text starts after the last mark before it.
    const char *text = request->chat ? strstr(document->prompt, "user\n") + 5 : document->prompt;
    const char *asked = i ? q->turn : text;
    for (const char *at = asked; (at = strstr(at, "\n\n")); at += 2)
        asked = at + 2;
    if (i && request->chat) asked = strstr(q->turn, "user\n") + 5;
    const char *first_question = text;
    for (const char *at = text; (at = strstr(at, "\n\n")); at += 2)
        first_question = at + 2;
    char *body = mem_format("%.*s", (int)(first_question - text), text);
    struct reader r = {.text = body};
    readers[request->task](&r, asked);
    const char *lead = q->answer + strspn(q->answer, " \n"), *expected = r.answer + strspn(r.answer, " \n");
    ck_assert_str_eq(lead, expected);
    // Blanks that a line begins with belong to the answer.
    if (request->chat)
        ck_assert_int_eq(q->answer[0] == ' ', request->task == TASK_COPY);
    else
        ck_assert(q->answer[0] == (request->task == TASK_COPY ? '\n' : ' '));
    check_spans(document, q, &r);
    check_ids(q->answer, 0, q->answer_ids, q->n_answer - 1);
    ck_assert_int_le(q->n_answer, TASK_ANSWER_TOKENS);
    ck_assert_str_eq(tokenizer_token(tokenizer, q->answer_ids[q->n_answer - 1]),
                     request->chat ? "<|im_end|>" : "<|endoftext|>");
    if (i) check_ids(q->turn, flags, q->turn_ids, q->n_turn);
    ck_assert(!i == !q->turn);
    free(body);
}

static void check_document(const struct task_request *request)
{
    struct task_document document, again;
    ck_assert_msg(task_make(tokenizer, request, &document) == STATUS_OK, "%s", status_message());
    ck_assert_msg(document.n <= request->tokens, "%s: %d tokens for %d", task_name(request->task), document.n,
                  request->tokens);
    ck_assert_msg(document.n > request->tokens - 80, "%s: %d tokens for %d", task_name(request->task), document.n,
                  request->tokens);
    check_ids(document.prompt, request->chat ? TOKENIZER_PARSE_SPECIAL : TOKENIZER_ADD_SPECIAL, document.ids,
              document.n);
    ck_assert_int_ge(document.n_questions, 1);
    ck_assert_int_le(document.n_questions, request->questions);
    for (int i = 0; i < document.n_questions; i++)
        check_question(request, &document, i);
    ck_assert_int_eq(task_make(tokenizer, request, &again), STATUS_OK);
    ck_assert_str_eq(document.prompt, again.prompt);
    ck_assert_str_eq(document.questions[0].answer, again.questions[0].answer);
    task_document_free(&again);
    task_document_free(&document);
}

START_TEST(answers_and_spans_follow_from_the_text)
{
    static const int lengths[] = {256, 300, 1000, 4000};
    for (int i = 0; i < 32; i++)
        check_document(&(struct task_request){.task = (enum task)_i,
                                              .chat = i & 1,
                                              .tokens = lengths[i / 2 % 4],
                                              .seed = 7,
                                              .number = (uint64_t)i,
                                              .questions = i < 16 ? 1 : 4});
}
END_TEST

// ---- sets -----------------------------------------------------------------------------------------------------------

static char *prompt_of(enum task task, uint64_t seed, uint64_t number)
{
    const struct task_request request = {.task = task, .tokens = 300, .seed = seed, .number = number, .questions = 1};
    struct task_document document;
    ck_assert_int_eq(task_make(tokenizer, &request, &document), STATUS_OK);
    char *prompt = mem_string(document.prompt);
    task_document_free(&document);
    return prompt;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

START_TEST(seeds_share_no_document)
{
    static const uint64_t seeds[] = {0, 1, TASK_CALIBRATION_SEED, TASK_CALIBRATION_SEED + 1, TASK_TRAINING_SEED};
    enum { SEEDS = sizeof seeds / sizeof *seeds, EACH = 40 };
    char *prompts[TASKS * SEEDS * EACH];
    int n = 0;
    for (int t = 0; t < TASKS; t++)
        for (int s = 0; s < SEEDS; s++)
            for (int i = 0; i < EACH; i++)
                prompts[n++] = prompt_of((enum task)t, seeds[s], (uint64_t)i);
    qsort(prompts, (size_t)n, sizeof *prompts, compare_texts);
    for (int i = 1; i < n; i++)
        ck_assert_str_ne(prompts[i - 1], prompts[i]);
    for (int i = 0; i < n; i++)
        free(prompts[i]);
}
END_TEST

// The counts that the first questions ask for are evenly spread, so the most frequent count is no good guess.
START_TEST(counts_are_evenly_spread)
{
    int seen[10] = {0};
    for (int i = 0; i < 450; i++) {
        const struct task_request request = {
            .task = TASK_COUNT, .tokens = 400, .seed = 3, .number = (uint64_t)i, .questions = 1};
        struct task_document document;
        ck_assert_int_eq(task_make(tokenizer, &request, &document), STATUS_OK);
        seen[atoi(document.questions[0].answer)]++;
        task_document_free(&document);
    }
    for (int count = 1; count <= 6; count++) {
        ck_assert_msg(seen[count] > 50, "%d is the answer %d times of 450", count, seen[count]);
        ck_assert_msg(seen[count] < 100, "%d is the answer %d times of 450", count, seen[count]);
    }
}
END_TEST

// Tables of earlier releases were measured on these needle documents.
START_TEST(needle_documents_stay_the_same)
{
    static const struct {
        int tokens;
        uint64_t seed, hash;
    } kept[] = {{256, 1, 0x23d2662be3d67635},
                {300, 2, 0x0e15f1ceeffe02db},
                {1000, 3, 0xed761dccf411399f},
                {4080, 1, 0x5b74c9d6d6609b44}};
    for (int i = 0; i < 4; i++) {
        const struct task_request request = {
            .task = TASK_NEEDLE, .tokens = kept[i].tokens, .seed = kept[i].seed, .number = (uint64_t)i, .questions = 1};
        struct task_document document;
        uint64_t hash = 0xcbf29ce484222325; // FNV-1a
        ck_assert_int_eq(task_make(tokenizer, &request, &document), STATUS_OK);
        for (const char *at = document.prompt; *at; at++)
            hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
        ck_assert_uint_eq(hash, kept[i].hash);
        task_document_free(&document);
    }
}
END_TEST

START_TEST(impossible_requests_are_refused)
{
    struct task_document document;
    ck_assert_int_eq(
        task_make(tokenizer, &(struct task_request){.tokens = TASK_TOKENS_MIN - 1, .questions = 1}, &document),
        STATUS_INVALID);
    enum task task;
    ck_assert(task_parse("two_hop", &task));
    ck_assert_int_eq(task, TASK_TWO_HOP);
    ck_assert(!task_parse("all", &task));
}
END_TEST

START_TEST(a_row_has_the_first_question_and_those_after_it)
{
    const struct task_request request = {.task = TASK_FACTS, .tokens = 300, .seed = 4, .number = 5, .questions = 3};
    struct task_document document;
    ck_assert_int_eq(task_make(tokenizer, &request, &document), STATUS_OK);
    json_t *row = task_row(&request, &document, true);
    ck_assert_str_eq(json_string_value(json_object_get(row, "id")), "facts-plain-4-300-5");
    ck_assert_str_eq(json_string_value(json_object_get(row, "task")), "facts");
    ck_assert_str_eq(json_string_value(json_object_get(row, "prompt")), document.prompt);
    ck_assert_uint_eq(json_array_size(json_object_get(row, "token_ids")), (size_t)document.n);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "tokens")), document.n);
    const json_t *more = json_object_get(row, "questions"), *last = json_array_get(more, 1);
    ck_assert_uint_eq(json_array_size(more), 2);
    ck_assert_str_eq(json_string_value(json_object_get(last, "answer")), document.questions[2].answer);
    ck_assert_uint_eq(json_array_size(json_object_get(last, "question_ids")), (size_t)document.questions[2].n_turn);
    ck_assert_uint_eq(json_array_size(json_object_get(last, "answer_ids")), (size_t)document.questions[2].n_answer);
    json_decref(row);
    task_document_free(&document);
}
END_TEST

SUITE("tasks")
{
    TIMEOUT(60);
    FIXTURE_ONCE(setup, teardown);
    LOOP(answers_and_spans_follow_from_the_text, 0, TASKS);
    TEST(seeds_share_no_document);
    TEST(counts_are_evenly_spread);
    TEST(needle_documents_stay_the_same);
    TEST(impossible_requests_are_refused);
    TEST(a_row_has_the_first_question_and_those_after_it);
}
