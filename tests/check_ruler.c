// SPDX-License-Identifier: Apache-2.0
// RULER's tasks: every answer stands in the prompt as often as its task says, lengths hold, and seeds decide.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/ruler.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

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

static struct ruler_request request_of(int task, int tokens, uint64_t number)
{
    return (struct ruler_request){
        .task = (enum ruler_task)task, .tokens = tokens, .seed = 7, .number = number, .characters_per_token = 4};
}

static struct ruler_document make(const struct ruler_request *request)
{
    struct ruler_document document;
    ck_assert_msg(ruler_make(request, &document) == STATUS_OK, "%s", status_message());
    return document;
}

static int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

// Returns how often the list of the document, after its worked example, has the word.
static int list_count(const char *prompt, const char *word)
{
    char *wanted = mem_format(". %s ", word);
    int n = occurrences(strstr(prompt, "\nQuestion:") + 1, wanted);
    free(wanted);
    return n;
}

START_TEST(answers_are_in_the_prompt)
{
    static const int n_answers[RULER_TASKS] = {1, 1, 1, 1, 1, 1, 4, 4, 5, 10, 3, 1, 1};
    struct ruler_request request = request_of(_i, 4096, 3);
    struct ruler_document document = make(&request);
    char *all = mem_string("");
    ck_assert_int_eq(document.n_answers, n_answers[_i]);
    for (int a = 0; a < document.n_answers; a++) {
        ck_assert_ptr_nonnull(strstr(document.prompt, document.answers[a]));
        char *longer = mem_format("%s, %s", all, document.answers[a]);
        free(all);
        all = longer;
    }
    ck_assert(ruler_score(&document, all) == 1);
    ck_assert(ruler_score(&document, "none of them") == 0);
    free(all);
    ruler_document_free(&document);
}
END_TEST

START_TEST(a_needle_stands_once_with_its_key)
{
    struct ruler_request request = request_of(_i, 4096, 1);
    struct ruler_document document = make(&request);
    for (int a = 0; a < document.n_answers; a++)
        ck_assert_int_eq(occurrences(document.prompt, document.answers[a]), 1);
    // The needle's line names a key that the question names, too.
    const char *question = strstr(document.prompt, "\nWhich hidden"),
               *value = strstr(document.prompt, document.answers[0]);
    const char *key = value - 1;
    while (strncmp(key, " for ", 5) != 0)
        key--;
    key += 5;
    char *name = mem_format("%.*s", (int)(strstr(key, " is:") - key), key);
    ck_assert_ptr_nonnull(strstr(question, name));
    free(name);
    ruler_document_free(&document);
}
END_TEST

START_TEST(variables_get_the_value_in_a_chain)
{
    struct ruler_request request = request_of(RULER_VT, 2048, 5);
    struct ruler_document document = make(&request);
    const char *at = strstr(document.prompt, "\nQuestion:");
    for (int a = 0; a < document.n_answers; a++) {
        char *line = a ? mem_format("VAR %s = VAR %s\n", document.answers[a], document.answers[a - 1])
                       : mem_format("VAR %s = ", document.answers[a]);
        at = strstr(at, line);
        ck_assert_ptr_nonnull(at);
        free(line);
    }
    ruler_document_free(&document);
}
END_TEST

START_TEST(common_words_are_the_most_common)
{
    struct ruler_request request = request_of(RULER_CWE, _i ? 8192 : 2048, 2);
    struct ruler_document document = make(&request);
    const int common = _i ? 30 : 10;
    for (int a = 0; a < document.n_answers; a++) // the list's last word has no blank after it
        ck_assert_int_ge(list_count(document.prompt, document.answers[a]), common - 1);
    ruler_document_free(&document);
}
END_TEST

START_TEST(frequent_words_are_ranked)
{
    struct ruler_request request = request_of(RULER_FWE, 8192, 2);
    struct ruler_document document = make(&request);
    int before = occurrences(document.prompt, "... ");
    for (int a = 0; a < document.n_answers; a++) {
        int n = occurrences(document.prompt, document.answers[a]);
        ck_assert_int_lt(n, before);
        before = n;
    }
    ck_assert_int_gt(before, 10);
    ruler_document_free(&document);
}
END_TEST

START_TEST(lengths_hold)
{
    static const int lengths[] = {1024, 4096, 16384, 131072};
    for (int l = 0; l < 4; l++) {
        if (_i == RULER_CWE && lengths[l] == 1024) continue;
        struct ruler_request request = request_of(_i, lengths[l], 0);
        request.tokenizer = l < 3 ? tokenizer : NULL;
        struct ruler_document document = make(&request);
        ck_assert_int_le(document.tokens + document.answer_tokens, lengths[l]);
        ck_assert_int_ge(document.tokens + document.answer_tokens, lengths[l] * 9 / 10);
        ruler_document_free(&document);
    }
}
END_TEST

START_TEST(the_seed_decides)
{
    struct ruler_request request = request_of(_i, 2048, 4);
    struct ruler_document one = make(&request), again = make(&request);
    ck_assert_str_eq(one.prompt, again.prompt);
    request.seed++;
    struct ruler_document other = make(&request);
    ck_assert_str_ne(one.prompt, other.prompt);
    ruler_document_free(&one);
    ruler_document_free(&again);
    ruler_document_free(&other);
}
END_TEST

START_TEST(a_share_of_the_answers_is_scored)
{
    char *answers[] = {"4711", "Amber"};
    struct ruler_document document = {.answers = answers, .n_answers = 2};
    ck_assert(ruler_score(&document, " it is 4711.") == 0.5);
    ck_assert(ruler_score(&document, "AMBER and 4711") == 1);
    document.any = true;
    ck_assert(ruler_score(&document, " it is amber") == 1);
    ck_assert(ruler_score(&document, "") == 0);
}
END_TEST

START_TEST(too_short_documents_are_refused)
{
    struct ruler_document document;
    struct ruler_request request = request_of(RULER_QA_1, RULER_TOKENS_MIN - 1, 0);
    ck_assert_int_eq(ruler_make(&request, &document), STATUS_INVALID);
    request = request_of(RULER_CWE, 1024, 0);
    request.tokenizer = tokenizer;
    ck_assert_int_eq(ruler_make(&request, &document), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "no room"));
}
END_TEST

// ---- passages of a file ---------------------------------------------------------------------------------------------

static const char squad[] =
    "{\"data\":[{\"title\":\"t\",\"paragraphs\":[{\"context\":\"The pier is old.\",\"qas\":[{\"question\":\"How old?\","
    "\"answers\":[{\"text\":\"old\"},{\"text\":\"very old\"}]},{\"question\":\"Who?\",\"is_impossible\":true,"
    "\"answers\":[]}]},{\"context\":\"Another one.\",\"qas\":[]}]}]}";
static const char hotpot[] =
    "[{\"question\":\"Where?\",\"answer\":\"North\",\"supporting_facts\":[[\"A\",0],[\"B\",0]],\"context\":["
    "[\"A\",[\"A is B's friend.\"]],[\"C\",[\"C is far.\"]],[\"B\",[\"B is\",\" in the North.\"]]]}]";

static enum status read_text(const char *text, struct ruler_passages **passages_p)
{
    char path[] = "/tmp/check_ruler.XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum status status = ruler_passages_read(path, passages_p);
    unlink(path);
    return status;
}

// Makes many copies of the first form, so that they fill a document. `text` has no newline.
START_TEST(questions_of_a_file_are_asked_with_their_passages)
{
    struct ruler_passages *passages;
    const char *needed[2] = {_i ? "A is B's friend." : "The pier is old.", _i ? "B is in the North." : "old"};
    char *many = mem_string(_i ? "[" : "{\"data\":[");
    for (int k = 0; k < 200; k++) {
        const char *first = _i ? hotpot + 1 : squad + 9; // without the opening brackets
        char *longer = mem_format("%s%s%.*s", many, k ? "," : "", (int)strlen(first) - (_i ? 1 : 2), first);
        free(many);
        many = longer;
    }
    char *text = mem_format("%s%s", many, _i ? "]" : "]}");
    ck_assert_msg(read_text(text, &passages) == STATUS_OK, "%s", status_message());
    struct ruler_request request = request_of(_i ? RULER_QA_2 : RULER_QA_1, 1024, 9);
    request.passages = passages;
    struct ruler_document document = make(&request);
    ck_assert_ptr_nonnull(strstr(document.prompt, needed[0]));
    ck_assert_ptr_nonnull(strstr(document.prompt, needed[1]));
    ck_assert_ptr_nonnull(strstr(document.prompt, _i ? "Question: Where?" : "Question: How old?"));
    ck_assert_int_eq(document.n_answers, _i ? 1 : 2);
    request.tokens = 1 << 20;
    ruler_document_free(&document);
    ck_assert_int_eq(ruler_make(&request, &document), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "passages of the file are too few"));
    ruler_passages_free(passages);
    free(text);
    free(many);
}
END_TEST

static const char *const broken[] = {
    "",
    "3",
    "{\"data\":3}",
    "[]",
    "{\"data\":[{\"paragraphs\":[{\"qas\":[]}]}]}",
    "{\"data\":[{\"paragraphs\":[{\"context\":\"a\",\"qas\":[{\"answers\":[{\"text\":\"b\"}]}]}]}]}",
    "{\"data\":[{\"paragraphs\":[{\"context\":\"a\",\"qas\":[{\"question\":\"q\",\"answers\":[3]}]}]}]}",
    "[{\"question\":\"q\",\"answer\":\"\"}]",
    "[{\"question\":\"q\",\"answer\":\"a\",\"context\":[[3]]}]",
    "[{\"question\":\"q\",\"answer\":\"a\",\"context\":[[\"t\",[\"s\"]]]}]",
};

START_TEST(broken_files_are_refused)
{
    struct ruler_passages *passages;
    ck_assert_int_eq(read_text(broken[_i], &passages), STATUS_INVALID);
}
END_TEST

SUITE("ruler")
{
    FIXTURE(setup, teardown);
    LOOP(answers_are_in_the_prompt, 0, RULER_TASKS);
    LOOP(a_needle_stands_once_with_its_key, RULER_SINGLE_1, RULER_VT);
    TEST(variables_get_the_value_in_a_chain);
    TEST(frequent_words_are_ranked);
    LOOP(common_words_are_the_most_common, 0, 2);
    LOOP(lengths_hold, 0, RULER_TASKS);
    LOOP(the_seed_decides, 0, RULER_TASKS);
    TEST(a_share_of_the_answers_is_scored);
    TEST(too_short_documents_are_refused);
    LOOP(questions_of_a_file_are_asked_with_their_passages, 0, 2);
    EACH(broken_files_are_refused, broken);
}
