// SPDX-License-Identifier: Apache-2.0
// base/options_environment: variables set options, in the documented order of precedence. Each test runs in a separate
// process.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/options.h"
#include "tests/suite.h"

static struct {
    int64_t max_wait_ms, port;
    bool open;
    char *mode;
    struct option_list stops;
} v;

static const struct option table[] = {
    {.name = "-Test options"},
    {.name = "max-wait-ms",
     .type = OPTION_INT,
     .value = &v.max_wait_ms,
     .default_text = "3",
     .min = 1,
     .max = 9,
     .live = true},
    {.name = "port", .type = OPTION_INT, .value = &v.port, .default_text = "8000"},
    {.name = "open", .type = OPTION_BOOL, .value = &v.open, .live = true},
    {.name = "mode", .type = OPTION_CHOICE, .value = &v.mode, .default_text = "auto", .choices = "auto|on"},
    {.name = "stop", .type = OPTION_LIST, .value = &v.stops},
    {0},
};

static char path[] = "/tmp/forepack-environment-XXXXXX";

static void write_config(const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static enum status parse(int argc, char **argv)
{
    options_use_environment();
    return options_parse(table, argc, argv, NULL, NULL);
}

static void ck_parsed(int argc, char **argv)
{
    enum status status = parse(argc, argv);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

START_TEST(flags_go_before_variables_and_variables_before_files)
{
    char *argv[] = {"prog", "--config", path, "--max-wait-ms", "7", "--stop=f"};
    close(mkstemp(path));
    write_config("max-wait-ms = 5\nport = 1\nopen = true\nstop = a\nmode = on\n");
    setenv("FOREPACK_OPT_MAX_WAIT_MS", "6", 1);
    setenv("FOREPACK_OPT_PORT", "2", 1);
    setenv("FOREPACK_OPT_STOP", "b\nc d\n", 1);
    ck_parsed(3, argv);
    ck_assert_int_eq(v.max_wait_ms, 6);
    ck_assert_int_eq(v.port, 2);
    ck_assert(v.open);
    ck_assert_str_eq(v.mode, "on");
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert_str_eq(v.stops.items[0], "b");
    ck_assert_str_eq(v.stops.items[1], "c d");
    ck_assert(options_given(table, "port"));
    options_free(table);
    ck_parsed(6, argv);
    ck_assert_int_eq(v.max_wait_ms, 7);
    ck_assert_int_eq(v.port, 2);
    ck_assert_int_eq(v.stops.count, 1);
    ck_assert_str_eq(v.stops.items[0], "f");
    options_free(table);
    unlink(path);
}
END_TEST

START_TEST(a_file_that_is_read_again_does_not_override_a_variable)
{
    char *argv[] = {"prog"};
    close(mkstemp(path));
    write_config("max-wait-ms = 5\n");
    setenv("FOREPACK_OPT_CONFIG", path, 1);
    setenv("FOREPACK_OPT_OPEN", "yes", 1);
    ck_parsed(1, argv);
    ck_assert_int_eq(v.max_wait_ms, 5);
    ck_assert(v.open);
    write_config("max-wait-ms = 6\nopen = no\n");
    ck_assert_int_eq(options_reload(table), STATUS_OK);
    ck_assert_int_eq(v.max_wait_ms, 6);
    ck_assert(v.open);
    options_free(table);
    unlink(path);
}
END_TEST

START_TEST(wrong_variables_are_refused_by_name)
{
    static const struct {
        const char *name, *value, *sentence;
    } wrong[] = {
        {"FOREPACK_OPT_API_KEY", "fpk_secret",
         "environment variable FOREPACK_OPT_API_KEY: this program has no such option (--help lists all)"},
        {"FOREPACK_OPT_", "1", "environment variable FOREPACK_OPT_: this program has no such option"},
        {"FOREPACK_OPT_port", "1", "environment variable FOREPACK_OPT_port: this program has no such option"},
        {"FOREPACK_OPT_MAX_WAIT_MS", "10",
         "environment variable FOREPACK_OPT_MAX_WAIT_MS: --max-wait-ms '10': must be a whole number from 1 to 9"},
        {"FOREPACK_OPT_MODE", "", "environment variable FOREPACK_OPT_MODE: --mode '': must be one of auto|on"},
    };
    char *argv[] = {"prog"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv(wrong[i].name, wrong[i].value, 1);
        ck_assert_int_eq(parse(1, argv), STATUS_INVALID);
        ck_assert_msg(strstr(status_message(), wrong[i].sentence) == status_message(), "%s", status_message());
        ck_assert_ptr_null(strstr(status_message(), "secret"));
        unsetenv(wrong[i].name);
        options_free(table);
    }
}
END_TEST

// The variables that Kubernetes sets for a Service named `forepack` with a port named `http`.
START_TEST(variables_of_a_service_named_forepack_are_not_read)
{
    char *argv[] = {"prog"};
    setenv("FOREPACK_PORT", "tcp://10.0.0.1:8000", 1);
    setenv("FOREPACK_SERVICE_HOST", "10.0.0.1", 1);
    setenv("FOREPACK_SERVICE_PORT", "8000", 1);
    setenv("FOREPACK_SERVICE_PORT_HTTP", "8000", 1);
    setenv("FOREPACK_PORT_8000_TCP", "tcp://10.0.0.1:8000", 1);
    setenv("FOREPACK_PORT_8000_TCP_ADDR", "10.0.0.1", 1);
    ck_parsed(1, argv);
    ck_assert_int_eq(v.port, 8000);
    options_free(table);
}
END_TEST

START_TEST(commands_of_users_read_no_variables)
{
    char *argv[] = {"prog"};
    setenv("FOREPACK_OPT_PORT", "2", 1);
    setenv("FOREPACK_OPT_OTHER", "2", 1);
    ck_assert_int_eq(options_parse(table, 1, argv, NULL, NULL), STATUS_OK);
    ck_assert_int_eq(v.port, 8000);
    options_free(table);
}
END_TEST

SUITE("options_environment")
{
    TEST(flags_go_before_variables_and_variables_before_files);
    TEST(a_file_that_is_read_again_does_not_override_a_variable);
    TEST(wrong_variables_are_refused_by_name);
    TEST(variables_of_a_service_named_forepack_are_not_read);
    TEST(commands_of_users_read_no_variables);
}
