// SPDX-License-Identifier: Apache-2.0
// base/: options, logs, UTF-8, condition variables, code that must not allocate.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/file_text.h"
#include "lib/base/journal.h"
#include "lib/base/log_options.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/no_alloc.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "tests/suite.h"

static struct {
    bool verbose;
    int64_t count;
    double rate;
    char *name, *mode;
    struct option_list stops;
} v;

static const struct option table[] = {
    {.name = "-Test options"},
    {.name = "verbose", .type = OPTION_BOOL, .value = &v.verbose, .help = "print more"},
    {.name = "count",
     .type = OPTION_INT,
     .value = &v.count,
     .default_text = "3",
     .min = 1,
     .max = 9,
     .unit = "tokens",
     .help = "number of tokens"},
    {.name = "rate", .type = OPTION_REAL, .value = &v.rate, .default_text = "0.5", .max = 1, .help = "share"},
    {.name = "name", .type = OPTION_STRING, .value = &v.name, .help = "name of the client"},
    {.name = "mode",
     .type = OPTION_CHOICE,
     .value = &v.mode,
     .default_text = "auto",
     .choices = "auto|on|off",
     .help = "mode"},
    {.name = "stop", .type = OPTION_LIST, .value = &v.stops, .help = "stop string"},
    {0},
};

static enum status parse(const char *line)
{
    char *argv[16] = {"prog"}, *rest[16];
    char *copy = strdup(line);
    int argc = 1, n_rest = 0;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    enum status status = options_parse(table, argc, argv, rest, &n_rest);
    free(copy);
    return status;
}

START_TEST(options_take_defaults_and_flags)
{
    ck_assert_int_eq(parse("--verbose --count=7 --name x --stop a --stop b"), STATUS_OK);
    ck_assert(v.verbose);
    ck_assert_int_eq(v.count, 7);
    ck_assert(v.rate == 0.5);
    ck_assert_str_eq(v.name, "x");
    ck_assert_str_eq(v.mode, "auto");
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert(options_given(table, "count"));
    ck_assert(!options_given(table, "rate"));
    ck_assert_int_eq(parse("--no-verbose"), STATUS_OK);
    ck_assert(!v.verbose);
    options_free(table);
}
END_TEST

START_TEST(options_refuse_with_the_key_and_what_is_allowed)
{
    static const char *const bad[][2] = {
        {"--count 10", "--count '10': must be a whole number from 1 to 9 tokens"},
        {"--count 2x", "--count '2x'"},
        {"--rate nan", "--rate 'nan': must be a number from 0 to 1"},
        {"--mode maybe", "must be one of auto|on|off"},
        {"--mode o", "must be one of auto|on|off"},
        {"--bogus", "unknown flag --bogus"},
        {"-x", "unknown flag -x"},
        {"--name", "a value must follow"},
        {"--config /nonexistent", "No such file"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(parse(bad[i][0]), STATUS_INVALID);
        ck_assert_msg(strstr(status_message(), bad[i][1]), "%s: %s", bad[i][0], status_message());
    }
    options_free(table);
}
END_TEST

START_TEST(options_file_yields_to_flags)
{
    char path[] = "/tmp/forepack-options-XXXXXX";
    int fd = mkstemp(path);
    const char *text = "# comment\ncount = 4\n name = a b \nstop = c\nstop = d\n";
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    char line[128];
    snprintf(line, sizeof line, "--config %s", path);
    ck_assert_int_eq(parse(line), STATUS_OK);
    ck_assert_int_eq(v.count, 4);
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert_str_eq(v.name, "a b");
    snprintf(line, sizeof line, "--count 5 --stop e --stop f --config %s", path);
    ck_assert_int_eq(parse(line), STATUS_OK);
    ck_assert_int_eq(v.count, 5);
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert_str_eq(v.stops.items[0], "e");
    ck_assert_str_eq(v.stops.items[1], "f");
    ck_assert_int_eq(write(fd, "nonsense\n", 9), 9);
    ck_assert_int_eq(parse(line), STATUS_INVALID);
    ck_assert(strstr(status_message(), ":6: expected 'key = value'"));
    close(fd);
    unlink(path);
    options_free(table);
}
END_TEST

// Checks that each line of `text` has at most `width` columns.
static void ck_width(const char *text, size_t width)
{
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(length <= width, "%zu columns: %.*s", length, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

START_TEST(help_is_a_table_within_100_columns)
{
    static char *text_value;
    static int64_t number;
    static const struct option rows[] = {
        {.name = "-Section"},
        {.name = "queue",
         .type = OPTION_INT,
         .value = &number,
         .default_text = "10000",
         .min = 1,
         .max = 1e8,
         .unit = "requests",
         .help = "requests that may wait; further requests are refused with a sentence that says when to try again"},
        {.name = "a-choice-with-a-long-name",
         .type = OPTION_CHOICE,
         .value = &text_value,
         .default_text = "one",
         .choices = "one|two|three",
         .help = "short"},
        {0},
    };
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    options_help(rows, "Usage: test", out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "\n  --queue N                      10000 requests    requests that may wait;"));
    ck_assert_ptr_nonnull(strstr(text, "(1..100000000)\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  --a-choice-with-a-long-name one|two|three\n"
                                       "                                 one               short\n"));
    ck_width(text, 100);
    free(text);
}
END_TEST

// --- log lines on standard error

static int saved_stderr;
static char log_path[] = "/tmp/forepack-log-XXXXXX";

static void log_capture(void)
{
    saved_stderr = dup(STDERR_FILENO);
    int fd = mkstemp(log_path);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

// Returns the text written since log_capture(). The caller frees it.
static char *log_captured(void)
{
    log_flush();
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    FILE *file = fopen(log_path, "r");
    char *text = mem_alloc(1 << 16);
    ck_assert_uint_lt(fread(text, 1, 1 << 16, file), 1 << 16);
    fclose(file);
    unlink(log_path);
    return text;
}

static json_t *json_line(const char *line)
{
    json_error_t error;
    json_t *object = json_loads(line, 0, &error);
    ck_assert_msg(object != NULL, "%s: %s", error.text, line);
    ck_assert_uint_eq(strcspn(line, "\n"), strlen(line) - 1);
    return object;
}

static const char *json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    ck_assert_msg(text != NULL, "%s", key);
    return text;
}

// Blanks, quotes, escapes, a line end, a terminal escape, C1, malformed UTF-8, a whole character, a line separator, an
// override of the direction of text, bytes at the end.
#define HOSTILE "a \"b\"=c\\ \n\x1b[31m\xc2\x9b\xff\xc3\xa9\xe2\x80\xa8\xe2\x80\xae\xe2\x82"

START_TEST(logfmt_quotes_what_is_not_plain)
{
    setenv("TZ", "XXX-5:30", 1);
    tzset();
    log_setup("router", LOG_INFO);
    log_capture();
    log_event(LOG_WARN, "node_refused", LOG_FIELD("node", "worker-1"), LOG_FIELD("empty", (char *)NULL),
              LOG_FIELD("hostile", HOSTILE), LOG_REQUEST(0x9f), LOG_MS("ttft_ms", 41349), LOG_FIELD("ok", (bool)true),
              LOG_FIELD("n", -3), LOG_FIELD("size", (size_t)7), LOG_FIELD("rate", 0.25));
    log_event(LOG_DEBUG, "bin_sent", LOG_FIELD("n", 1));
    char *text = log_captured();
    ck_assert_str_eq(
        text + strlen("2026-11-22T13:04:31.207+05:30"),
        " warn router node_refused node=worker-1 empty=\"\" "
        "hostile=\"a \\\"b\\\"=c\\\\ \\u000a\\u001b[31m\\u009b\\ufffd\xc3\xa9\\u2028\\u202e\\ufffd\\ufffd\" "
        "req=000000000000009f ttft_ms=41.3 ok=true n=-3 size=7 rate=0.25\n");
    free(text);
}
END_TEST

START_TEST(lines_for_the_journal_have_a_priority_and_no_time)
{
    struct stat file;
    char stream[64];
    log_setup("router", LOG_INFO);
    log_capture();
    fstat(STDERR_FILENO, &file);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)file.st_dev, (unsigned long long)file.st_ino + 1);
    setenv("JOURNAL_STREAM", stream, 1);
    log_set_journal(journal_is_stderr()); // another file
    log_event(LOG_INFO, "first", LOG_FIELD("n", 1));
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)file.st_dev, (unsigned long long)file.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_set_journal(journal_is_stderr());
    log_event(LOG_WARN, "second", LOG_FIELD("n", 2));
    log_event(LOG_ERROR, "third", LOG_FIELD("n", 3));
    log_event(LOG_INFO, "fourth", LOG_FIELD("n", 4));
    char *text = log_captured();
    ck_assert_ptr_nonnull(strstr(text, " info router first n=1\n<4>warn router second n=2\n<3>error router third n=3\n"
                                       "<6>info router fourth n=4\n"));
    ck_assert_int_eq(text[4], '-');
    free(text);
}
END_TEST

START_TEST(json_lines_carry_the_same_values)
{
    log_setup("worker[2]", LOG_DEBUG);
    log_set_format(LOG_FORMAT_JSON);
    log_capture();
    log_event(LOG_DEBUG, "bin_sent", LOG_FIELD("hostile", HOSTILE), LOG_REQUEST(UINT64_MAX), LOG_FIELD("rate", NAN),
              LOG_FIELD("n", INT64_MIN), LOG_FIELD("ok", (bool)false), LOG_MS("wait_ms", 500));
    char *text = log_captured();
    json_t *line = json_line(text);
    ck_assert_str_eq(json_text(line, "level"), "debug");
    ck_assert_str_eq(json_text(line, "process"), "worker[2]");
    ck_assert_str_eq(json_text(line, "event"), "bin_sent");
    ck_assert_str_eq(json_text(line, "req"), "ffffffffffffffff");
    ck_assert_str_eq(
        json_text(line, "hostile"),
        "a \"b\"=c\\ \n\x1b[31m\xc2\x9b\xef\xbf\xbd\xc3\xa9\xe2\x80\xa8\xe2\x80\xae\xef\xbf\xbd\xef\xbf\xbd");
    ck_assert(json_is_null(json_object_get(line, "rate")));
    ck_assert_int_eq(json_integer_value(json_object_get(line, "n")), INT64_MIN);
    ck_assert(json_is_false(json_object_get(line, "ok")));
    ck_assert(json_number_value(json_object_get(line, "wait_ms")) == 0.5);
    ck_assert_uint_eq(strlen(json_text(line, "time")), strlen("2026-11-22T12:04:31.207Z"));
    json_decref(line);
    free(text);
}
END_TEST

// Lines of every length around the limit are one line and valid JSON. They are marked as cut exactly when something is
// missing.
START_TEST(cut_lines_stay_json)
{
    static const char *const fillers[] = {"x", "\"", "\x01", "\xe2\x82\xac", "\xff"};
    log_set_format(LOG_FORMAT_JSON);
    for (size_t f = 0; f < sizeof fillers / sizeof fillers[0]; f++) {
        size_t width = strlen(fillers[f]);
        for (size_t n = 250; n < LOG_LINE_BYTES + 8; n += n < 1700 / width ? 50 : 1) {
            char *value = mem_alloc(n * width + 1);
            for (size_t i = 0; i < n; i++)
                memcpy(value + i * width, fillers[f], width);
            strcpy(log_path, "/tmp/forepack-log-XXXXXX");
            log_capture();
            log_event(LOG_INFO, "request_received", LOG_FIELD("value", value), LOG_FIELD("tenant", "acme"),
                      LOG_FIELD("tokens", 1234567));
            char *text = log_captured();
            ck_assert_uint_le(strlen(text), LOG_LINE_BYTES);
            json_t *line = json_line(text);
            size_t length = json_string_length(json_object_get(line, "value"));
            bool whole =
                length == n * (f < 3 ? 1 : 3) && json_object_get(line, "tenant") && json_object_get(line, "tokens");
            ck_assert_int_eq(whole, json_object_get(line, "cut") == NULL);
            json_decref(line);
            free(text);
            free(value);
        }
    }
}
END_TEST

START_TEST(settings_name_every_option)
{
    ck_assert_int_eq(parse("--count 7 --name x --stop a --stop b"), STATUS_OK);
    static struct log_options log;
    static const struct option rows[] = {LOG_OPTION_ROWS(log), {0}};
    char *argv[] = {"prog", "--log-format", "json", "--log-level", "warn"};
    ck_assert_int_eq(options_parse(rows, 5, argv, NULL, NULL), STATUS_OK);
    log_capture();
    options_log(table);
    log_options_apply(&log, "router");
    options_log(rows); // info: below the level
    log_event(LOG_ERROR, "last", LOG_FIELD("n", 1));
    char *text = log_captured(), *second = strchr(text, '\n') + 1;
    ck_assert_ptr_nonnull(strstr(text, " settings version=" FOREPACK_VERSION
                                       " commit=unknown verbose=false count=7 rate=0.5 name=x mode=auto stop=a,b\n"));
    json_t *line = json_line(second);
    ck_assert_str_eq(json_text(line, "event"), "last");
    json_decref(line);
    free(text);
    options_free(rows);
    options_free(table);
}
END_TEST

START_TEST(a_program_outlives_the_reader_of_its_log)
{
    static struct log_options log;
    static const struct option rows[] = {LOG_OPTION_ROWS(log), {0}};
    char *argv[] = {"prog"};
    int ends[2];
    ck_assert_int_eq(options_parse(rows, 1, argv, NULL, NULL), STATUS_OK);
    log_options_apply(&log, "worker");
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    int standard_error = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    log_event(LOG_ERROR, "unread", LOG_FIELD("n", 1)); // SIGPIPE would end the process
    log_flush();
    dup2(standard_error, STDERR_FILENO);
    close(standard_error);
    close(ends[1]);
    options_free(rows);
}
END_TEST

START_TEST(exit_codes_tell_usage_from_failure)
{
    ck_assert_int_eq(status_exit_code(STATUS_OK), 0);
    ck_assert_int_eq(status_exit_code(STATUS_INVALID), 2);
    ck_assert_int_eq(status_exit_code(STATUS_NOT_FOUND), 2);
    ck_assert_int_eq(status_exit_code(STATUS_UNSUPPORTED), 2);
    ck_assert_int_eq(status_exit_code(STATUS_DATA), 2);
    ck_assert_int_eq(status_exit_code(STATUS_OUT_OF_RANGE), 1);
    ck_assert_int_eq(status_exit_code(STATUS_UNAVAILABLE), 1);
    ck_assert_int_eq(status_exit_code(STATUS_INTERNAL), 1);
}
END_TEST

START_TEST(a_condition_waits_until_its_time)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    monotonic_cond_init(&cond);
    pthread_mutex_lock(&mutex);
    ck_assert(!monotonic_cond_wait(&cond, &mutex, clock_now_us() - 1));
    int64_t until_us = clock_now_us() + 2000;
    while (monotonic_cond_wait(&cond, &mutex, until_us))
        continue;
    ck_assert_int_ge(clock_now_us(), until_us);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&cond);
}
END_TEST

START_TEST(utf8_accepts_exactly_rfc_3629)
{
    size_t bad;
    ck_assert(utf8_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10, NULL));
    ck_assert(!utf8_valid("ab\xC0\x80", 4, &bad));
    ck_assert_uint_eq(bad, 2);
    ck_assert(!utf8_valid("\xED\xA0\x80", 3, NULL));
    ck_assert(!utf8_valid("\xF4\x90\x80\x80", 4, NULL));
    ck_assert(!utf8_valid("\xE2\x82", 2, NULL));
}
END_TEST

START_TEST(utf8_clean_removes_controls)
{
    char text[] = "a\x1b[2J\r\n\xC2\x9b\xE2\x80\xAE b\xff\xE2\x82\xAC";
    utf8_clean(text);
    ck_assert_str_eq(text, "a [2J        b?\xE2\x82\xAC");
}
END_TEST

START_TEST(utf8_tail_is_what_more_bytes_could_complete)
{
    ck_assert_uint_eq(utf8_incomplete_tail("ab", 2), 0);
    ck_assert_uint_eq(utf8_incomplete_tail("a\xE2\x82", 3), 2);
    ck_assert_uint_eq(utf8_incomplete_tail("\xF0\x9F\x98", 3), 3);
    ck_assert_uint_eq(utf8_incomplete_tail("\xF0\x9F\x98\x80", 4), 0);
    ck_assert_uint_eq(utf8_incomplete_tail("\xE2\x28", 2), 0);
    ck_assert_uint_eq(utf8_incomplete_tail("", 0), 0);
}
END_TEST

// A program that cannot read a file ends with exit code 2, so that its supervisor does not start it again.
START_TEST(files_that_cannot_be_opened_have_the_status_of_the_reason)
{
    char *text;
    size_t n;
    ck_assert_int_eq(file_text_read("/nowhere", 1, &text, &n), STATUS_NOT_FOUND);
    ck_assert_int_eq(file_text_read("/dev/null/file", 1, &text, &n), STATUS_INVALID);
    ck_assert_int_eq(file_text_read("/dev/null", 1, &text, &n), STATUS_DATA);
    ck_assert_int_eq(file_open_status(EACCES), STATUS_INVALID);
    ck_assert_int_eq(file_open_status(EMFILE), STATUS_INTERNAL);
}
END_TEST

START_TEST(a_sentence_is_always_well_formed)
{
    status_fail(STATUS_INVALID, "%.3s and \xff", "\xC3\xA9\xC3\xA9");
    ck_assert_str_eq(status_message(), "\xC3\xA9? and ?");
}
END_TEST

START_TEST(a_long_text_is_cut_between_characters)
{
    char text[8], accents[2048] = "";
    utf8_format(text, sizeof text, "%s%d", "\xC3\xA9", 12345);
    ck_assert_str_eq(text, "\xC3\xA9"
                           "12345");
    utf8_format(text, sizeof text, "%s\xC3\xA9", "123456");
    ck_assert_str_eq(text, "123456");
    utf8_format(text, sizeof text, "1\xF0\x9F\x98\x80\xE2\x82\xAC");
    ck_assert_str_eq(text, "1\xF0\x9F\x98\x80");
    for (int i = 0; i < 1000; i++)
        memcpy(accents + 2 * i, "\xC3\xA9", 2);
    for (int skip = 0; skip < 2; skip++) {
        status_fail(STATUS_INVALID, "%.*s%s", skip, "x", accents);
        ck_assert(utf8_valid(status_message(), strlen(status_message()), NULL));
        ck_assert_uint_eq(strlen(status_message()), 1022 + skip);
        status_context(STATUS_INVALID, "%.*s%s", skip, "x", accents);
        ck_assert(utf8_valid(status_message(), strlen(status_message()), NULL));
    }
}
END_TEST

// Returns true if this build traps allocations. Builds without a sanitizer do not.
static bool traps(void)
{
    no_alloc_begin("this test");
    bool active = no_alloc_active();
    no_alloc_end();
    if (!active) printf("skipped: no_alloc traps only in builds with a sanitizer\n");
    return active;
}

START_TEST(allocating_where_it_must_not_aborts)
{
    if (!traps()) raise(SIGABRT); // the expected end of this test
    no_alloc_begin("this test");
    no_alloc_begin("an inner section");
    no_alloc_end();
    free(mem_alloc(1));
}
END_TEST

START_TEST(libraries_count_as_well)
{
    if (!traps()) raise(SIGABRT);
    no_alloc_begin("this test");
    free(mem_format("%d", 1)); // allocated by the C library
}
END_TEST

START_TEST(allocating_elsewhere_is_fine)
{
    void *before = mem_alloc(1);
    no_alloc_begin("this test");
    free(before);
    int suspended = no_alloc_suspend();
    free(mem_alloc(1));
    no_alloc_resume(suspended);
    no_alloc_end();
    ck_assert(!no_alloc_active());
    free(mem_alloc(1));
}
END_TEST

SUITE("base")
{
    TEST(options_take_defaults_and_flags);
    TEST(options_refuse_with_the_key_and_what_is_allowed);
    TEST(options_file_yields_to_flags);
    TEST(help_is_a_table_within_100_columns);
    TEST(logfmt_quotes_what_is_not_plain);
    TEST(lines_for_the_journal_have_a_priority_and_no_time);
    TEST(json_lines_carry_the_same_values);
    TEST(cut_lines_stay_json);
    TEST(settings_name_every_option);
    TEST(a_program_outlives_the_reader_of_its_log);
    TEST(exit_codes_tell_usage_from_failure);
    TEST(a_condition_waits_until_its_time);
    TEST(utf8_accepts_exactly_rfc_3629);
    TEST(utf8_clean_removes_controls);
    TEST(utf8_tail_is_what_more_bytes_could_complete);
    TEST(files_that_cannot_be_opened_have_the_status_of_the_reason);
    TEST(a_sentence_is_always_well_formed);
    TEST(a_long_text_is_cut_between_characters);
    TEST_ABORTS(allocating_where_it_must_not_aborts);
    TEST_ABORTS(libraries_count_as_well);
    TEST(allocating_elsewhere_is_fine);
}
