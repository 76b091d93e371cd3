// SPDX-License-Identifier: Apache-2.0
// router/front: the log names each unknown field of bodies once.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "router/front/http/json_generation.h"
#include "router/front/http/json_unknown.h"
#include "tests/suite.h"

static FILE *log_file;
static int saved_stderr;

static void setup(void)
{
    log_setup("test", LOG_INFO);
    log_file = tmpfile();
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(log_file), STDERR_FILENO);
}

static void teardown(void)
{
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    fclose(log_file);
}

static void log_body(const char *text)
{
    json_t *body = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(body);
    json_unknown_log("chat", json_generation_knows, body);
    json_decref(body);
}

// Returns how many lines of the log contain the words.
static int count_lines(const char *words)
{
    char line[LOG_LINE_BYTES + 2];
    int n = 0;
    rewind(log_file);
    while (fgets(line, sizeof line, log_file))
        n += strstr(line, words) != NULL;
    fseek(log_file, 0, SEEK_END);
    return n;
}

START_TEST(an_unknown_field_is_logged_once)
{
    log_body("{\"model\":\"m\",\"temperature\":1,\"keep_rate\":1,\"no_such_field\":\"secret\"}");
    log_body("{\"no_such_field\":1,\"store\":true}");
    ck_assert_int_eq(count_lines("field_ignored api=chat field=no_such_field"), 1);
    ck_assert_int_eq(count_lines("field_ignored"), 1);
    ck_assert_int_eq(count_lines("secret"), 0);
}
END_TEST

// Known are the fields of each table, whatever their values: read, refused and ignored ones.
START_TEST(the_fields_of_a_reader_are_known)
{
    log_body("{\"stop\":1,\"max_completion_tokens\":1,\"logprobs\":1,\"pinned\":1,\"conversation\":1,"
             "\"guided_choice\":1,\"structured_outputs\":1,\"response_format\":1,\"cache_salt\":1,"
             "\"prediction\":1,\"safety_identifier\":1}");
    ck_assert_int_eq(count_lines("field_ignored"), 0);
}
END_TEST

START_TEST(names_that_could_hold_data_are_not_logged)
{
    log_body("{\"sk-12\":1,\"a b\":1,\"a\\nb\":1,\"\":1,\"Ab\":1,\"a1\":1,"
             "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\":1}");
    ck_assert_int_eq(count_lines("field_ignored"), 0);
}
END_TEST

START_TEST(the_number_of_names_is_bounded)
{
    char body[] = "{\"aa\":1}";
    for (char first = 'a'; first <= 'z'; first++)
        for (char second = 'a'; second <= 'z'; second++) {
            body[2] = first;
            body[3] = second;
            log_body(body);
        }
    ck_assert_int_eq(count_lines("field_ignored"), 64);
}
END_TEST

SUITE("json_unknown")
{
    FIXTURE(setup, teardown);
    TEST(an_unknown_field_is_logged_once);
    TEST(the_fields_of_a_reader_are_known);
    TEST(names_that_could_hold_data_are_not_logged);
    TEST(the_number_of_names_is_bounded);
}
