// SPDX-License-Identifier: Apache-2.0
// The rows of tests/suite.h. Linked into all tests.
#include "tests/suite.h"

static const char *suite_name;
static Suite *suite;
static TCase *tcase; // gets the next rows; NULL before the first
static enum fork_status fork_status = CK_FORK_GETENV;

void suite_begin_case(const char *name)
{
    tcase = tcase_create(name);
    suite_add_tcase(suite, tcase);
}

static TCase *current_case(void)
{
    if (!tcase) suite_begin_case(suite_name);
    return tcase;
}

void suite_add(const TTest *test, int signal, int from, int to)
{
    tcase_add_loop_test_raise_signal(current_case(), test, signal, from, to);
}

void suite_set_timeout(double seconds)
{
    tcase_set_timeout(current_case(), seconds);
}

void suite_add_fixture(void (*setup)(void), void (*teardown)(void))
{
    tcase_add_checked_fixture(current_case(), setup, teardown);
}

void suite_add_fixture_once(void (*setup)(void), void (*teardown)(void))
{
    tcase_add_unchecked_fixture(current_case(), setup, teardown);
}

void suite_set_no_fork(void)
{
    fork_status = CK_NOFORK;
}

void suite_skip_unless(bool condition)
{
    if (!condition) exit(EXIT_SKIPPED);
}

int suite_main(const char *name, void (*rows)(int argc, char **argv), int argc, char **argv)
{
    suite_name = name;
    suite = suite_create(name);
    rows(argc, argv);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, fork_status);
    srunner_run_all(runner, CK_ENV);
    const bool passed = srunner_ntests_run(runner) > 0 && srunner_ntests_failed(runner) == 0;
    srunner_free(runner);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
