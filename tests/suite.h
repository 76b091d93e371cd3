// SPDX-License-Identifier: Apache-2.0
// Registers the tests of a file with Check and defines main(). A test file ends with its suite:
//
//     SUITE("conversation")
//     {
//         TIMEOUT(60);
//         FIXTURE(setup, teardown);
//         TEST(each_turn_is_scored_once);
//         LOOP(a_conversation_may_be_switched_off, 0, 2);
//     }
//
// The rows are statements that run before the first test, so that they can depend on `argc` and `argv`. START_TEST()
// makes a variable of each test: a test without a row is an unused variable, which the compiler refuses. The program
// exits with 0 if it ran tests and all passed, 1 otherwise, and EXIT_SKIPPED if it cannot run here.
// CK_VERBOSITY=verbose prints each test.
#pragma once

#include <check.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

enum { EXIT_SKIPPED = 77 }; // CTest shows the test as skipped

#define SUITE(name)                                                                                                    \
    static void suite_rows(int argc, char **argv);                                                                     \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return suite_main(name, suite_rows, argc, argv);                                                               \
    }                                                                                                                  \
    static void suite_rows(int argc, char **argv)

// Add one test, a test for each `_i` from `from` to `to` - 1, and a test for each index of an array.
#define TEST(test)           suite_add(test, 0, 0, 1)
#define LOOP(test, from, to) suite_add(test, 0, (int)(from), (int)(to))
#define EACH(test, array)    suite_add(test, 0, 0, (int)(sizeof(array) / sizeof *(array)))

// Adds tests that must raise SIGABRT.
#define TEST_ABORTS(test)           suite_add(test, SIGABRT, 0, 1)
#define LOOP_ABORTS(test, from, to) suite_add(test, SIGABRT, (int)(from), (int)(to))

// Begins a test case with its own fixtures and time limit. Rows before the first TCASE belong to a test case with the
// name of the suite.
#define TCASE(name) suite_begin_case(name)

// Sets the seconds that each test of the test case may take; 0: no limit. The default is Check's 4 seconds. CTest
// multiplies all limits by 60, because a test may share its core.
#define TIMEOUT(seconds) suite_set_timeout(seconds)

// Runs the functions around each test of the test case, or once around all of them in main's process. One may be NULL.
#define FIXTURE(setup, teardown)      suite_add_fixture(setup, teardown)
#define FIXTURE_ONCE(setup, teardown) suite_add_fixture_once(setup, teardown)

// Runs all tests in main's process: for libraries that do not survive a fork. No test has a time limit then.
#define NO_FORK() suite_set_no_fork()

// Ends the program with EXIT_SKIPPED if the condition does not hold; a function in it prints the reason.
#define SKIP_UNLESS(condition) suite_skip_unless(condition)

#ifdef __cplusplus
extern "C" {
#endif

int suite_main(const char *name, void (*rows)(int argc, char **argv), int argc, char **argv);
void suite_add(const TTest *test, int signal, int from, int to);
void suite_begin_case(const char *name);
void suite_set_timeout(double seconds);
void suite_add_fixture(void (*setup)(void), void (*teardown)(void));
void suite_add_fixture_once(void (*setup)(void), void (*teardown)(void));
void suite_set_no_fork(void);
void suite_skip_unless(bool condition);

#ifdef __cplusplus
}
#endif
