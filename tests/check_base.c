// SPDX-License-Identifier: Apache-2.0
// base/: options, UTF-8, stretches that must not allocate.
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "base/options.h"
#include "base/utf8.h"

static struct {
    bool verbose;
    int64_t count;
    double rate;
    char *name, *mode;
    struct option_list stops;
} v;

static const struct option table[] = {
    {.name = "-Test options"},
    {.name = "verbose", .type = OPTION_BOOL, .value = &v.verbose, .help = "talk"},
    {.name = "count",
     .type = OPTION_INT,
     .value = &v.count,
     .default_text = "3",
     .min = 1,
     .max = 9,
     .unit = "tokens",
     .help = "how many"},
    {.name = "rate", .type = OPTION_REAL, .value = &v.rate, .default_text = "0.5", .max = 1, .help = "share"},
    {.name = "name", .type = OPTION_STRING, .value = &v.name, .help = "who"},
    {.name = "mode",
     .type = OPTION_CHOICE,
     .value = &v.mode,
     .default_text = "auto",
     .choices = "auto|on|off",
     .help = "when"},
    {.name = "stop", .type = OPTION_LIST, .value = &v.stops, .help = "where"},
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
    ck_assert(v.verbose && v.count == 7 && v.rate == 0.5);
    ck_assert_str_eq(v.name, "x");
    ck_assert_str_eq(v.mode, "auto");
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert(options_given(table, "count") && !options_given(table, "rate"));
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
    const char *text = "# comment\ncount = 4\n name = a b \n";
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    char line[128];
    snprintf(line, sizeof line, "--count 5 --config %s", path);
    ck_assert_int_eq(parse(line), STATUS_OK);
    ck_assert_int_eq(v.count, 5);
    ck_assert_str_eq(v.name, "a b");
    ck_assert_int_eq(write(fd, "nonsense\n", 9), 9);
    ck_assert_int_eq(parse(line), STATUS_INVALID);
    ck_assert(strstr(status_message(), ":4: expected 'key = value'"));
    close(fd);
    unlink(path);
    options_free(table);
}
END_TEST

START_TEST(utf8_accepts_exactly_rfc_3629)
{
    size_t bad;
    ck_assert(utf8_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10, NULL));
    ck_assert(!utf8_valid("ab\xC0\x80", 4, &bad) && bad == 2);
    ck_assert(!utf8_valid("\xED\xA0\x80", 3, NULL));
    ck_assert(!utf8_valid("\xF4\x90\x80\x80", 4, NULL));
    ck_assert(!utf8_valid("\xE2\x82", 2, NULL));
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

// In a stretch that must not, an allocation ends the process; before, after and while it is suspended it does not.
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
    if (!traps()) raise(SIGABRT); // what is expected of this test
    no_alloc_begin("this test");
    no_alloc_begin("an inner stretch");
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

START_TEST(cores_are_shared_out_without_a_rest)
{
    cpu_set_t all, mine, seen;
    CPU_ZERO(&all);
    for (int i = 0; i < 7; i++)
        CPU_SET(3 * i + 1, &all); // 1, 4, ... 19
    ck_assert_int_eq(cores_at(&all, 0), 1);
    ck_assert_int_eq(cores_at(&all, 6), 19);
    for (int sharers = 1; sharers <= 7; sharers++) {
        CPU_ZERO(&seen);
        for (int i = 0; i < sharers; i++) {
            ck_assert(cores_share(&all, i, sharers, &mine));
            ck_assert_int_ge(CPU_COUNT(&mine), 7 / sharers);
            ck_assert_int_le(CPU_COUNT(&mine), 7 / sharers + 1);
            cpu_set_t both;
            CPU_AND(&both, &seen, &mine);
            ck_assert_int_eq(CPU_COUNT(&both), 0);
            CPU_OR(&seen, &seen, &mine);
        }
        ck_assert(CPU_EQUAL(&seen, &all));
    }
    ck_assert(!cores_share(&all, 0, 8, &mine));
    cores_usable(&all);
    ck_assert_int_eq(CPU_COUNT(&all), cores_count());
    ck_assert_int_ge(cores_count(), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tcase = tcase_create("base");
    tcase_add_test(tcase, options_take_defaults_and_flags);
    tcase_add_test(tcase, options_refuse_with_the_key_and_what_is_allowed);
    tcase_add_test(tcase, options_file_yields_to_flags);
    tcase_add_test(tcase, utf8_accepts_exactly_rfc_3629);
    tcase_add_test(tcase, utf8_tail_is_what_more_bytes_could_complete);
    tcase_add_test_raise_signal(tcase, allocating_where_it_must_not_aborts, SIGABRT);
    tcase_add_test_raise_signal(tcase, libraries_count_as_well, SIGABRT);
    tcase_add_test(tcase, allocating_elsewhere_is_fine);
    tcase_add_test(tcase, cores_are_shared_out_without_a_rest);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
