// SPDX-License-Identifier: Apache-2.0
// base/options_reload: the --config file is read again. Each test runs in a separate process.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log_options.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

static struct {
    int64_t room, rest;
    double rate;
    bool open;
    char *name;
    struct option_list stops;
    struct log_options log;
} v;

static const struct option table[] = {
    {.name = "-Test options"},
    {.name = "room", .type = OPTION_INT, .value = &v.room, .default_text = "3", .min = 1, .max = 9, .live = true},
    {.name = "rest", .type = OPTION_INT, .value = &v.rest, .default_text = "4"},
    {.name = "rate", .type = OPTION_REAL, .value = &v.rate, .default_text = "0.3", .live = true},
    {.name = "open", .type = OPTION_BOOL, .value = &v.open, .live = true},
    {.name = "name", .type = OPTION_STRING, .value = &v.name, .live = true},
    {.name = "stop", .type = OPTION_LIST, .value = &v.stops, .live = true},
    LOG_OPTION_ROWS(v.log),
    {0},
};

static char path[] = "/tmp/forepack-options-XXXXXX", log_path[] = "/tmp/forepack-options-log-XXXXXX";

static void write_config(const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void start(const char *config, char *flag)
{
    char *argv[] = {"prog", "--config", path, flag};
    close(mkstemp(path));
    write_config(config);
    enum status status = options_parse(table, flag ? 4 : 3, argv, NULL, NULL);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

// Reads `config` again. Returns the lines of the log without their times. The caller frees them.
static char *reload(const char *config, enum status expected)
{
    write_config(config);
    int saved = dup(STDERR_FILENO), fd = mkstemp(log_path);
    dup2(fd, STDERR_FILENO);
    enum status status = options_reload(table);
    log_flush();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ck_assert_msg(status == expected, "%s", status_message());
    char *text = mem_alloc(4096);
    ck_assert_int_ge(pread(fd, text, 4095, 0), 0);
    close(fd);
    unlink(log_path);
    strcpy(log_path + strlen(log_path) - 6, "XXXXXX");
    return text;
}

static void finish(void)
{
    options_free(table);
    unlink(path);
}

static void ck_said(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words), "'%s' is not in '%s'", words, text);
}

START_TEST(live_options_change_and_others_are_named)
{
    start("room = 5\nname = a\nstop = x\n", NULL);
    char *text = reload("room = 6\nrest = 7\nrate = 0.4\nopen = yes\nname = b\nstop = y\nstop = z\n", STATUS_OK);
    ck_said(text, " info forepack option_changed option=room old=5 new=6\n");
    ck_said(text, " warn forepack option_not_changed option=rest old=4 new=7 effect=");
    ck_said(text, "option_changed option=rate old=0.3 new=0.4\n");
    ck_said(text, "option_changed option=open old=false new=true\n");
    ck_said(text, "option_changed option=name old=a new=b\n");
    ck_said(text, "option_changed option=stop old=x new=y,z\n");
    ck_assert_int_eq(v.room, 6);
    ck_assert_int_eq(v.rest, 4);
    ck_assert(v.rate == 0.4);
    ck_assert(v.open);
    ck_assert_int_eq(v.stops.count, 2);
    ck_assert_str_eq(v.name, "b");
    free(text);
    text = reload("room = 6\nrest = 4\nrate = 0.40\nopen = on\nname = b\nstop = y\nstop = z\n", STATUS_OK);
    ck_assert_str_eq(text, "");
    free(text);
    text = reload("", STATUS_OK); // defaults
    ck_assert_int_eq(v.room, 3);
    ck_assert(v.rate == 0.3);
    ck_assert(!v.open);
    ck_assert_ptr_null(v.name);
    ck_assert_int_eq(v.stops.count, 0);
    free(text);
    finish();
}
END_TEST

START_TEST(flags_override_the_file)
{
    start("room = 5\nrest = 5\n", "--room=8");
    char *text = reload("room = 6\n", STATUS_OK);
    ck_assert_int_eq(v.room, 8);
    ck_assert_ptr_null(strstr(text, "option=room"));
    ck_said(text, "option_not_changed option=rest old=5 new=4");
    free(text);
    finish();
}
END_TEST

START_TEST(all_files_are_read_again_the_last_one_wins)
{
    char more[] = "/tmp/forepack-options-XXXXXX";
    char *argv[] = {"prog", "--config", more, "--config", path};
    int fd = mkstemp(more);
    ck_assert_int_gt(dprintf(fd, "room = 5\nrest = 5\n"), 0);
    ck_assert_int_eq(close(fd), 0);
    close(mkstemp(path));
    write_config("name = a\n");
    ck_assert_int_eq(options_parse(table, 5, argv, NULL, NULL), STATUS_OK);
    ck_assert_int_eq(v.room, 5);
    ck_assert_int_eq(v.rest, 5);
    char *text = reload("name = b\n", STATUS_OK);
    ck_assert_ptr_null(strstr(text, "option=room"));
    ck_assert_ptr_null(strstr(text, "option=rest"));
    ck_assert_int_eq(v.room, 5);
    ck_assert_str_eq(v.name, "b");
    free(text);
    unlink(more);
    finish();
}
END_TEST

START_TEST(a_file_with_an_error_changes_nothing)
{
    static const struct {
        const char *config, *words;
    } wrong[] = {{"room = 6\nroom = 0\n", ":2: --room '0': must be a whole number from 1 to 9"},
                 {"name = b\nnonsense\n", ":2: expected 'key = value'"},
                 {"name = b\nnews = 1\n", ":2: unknown key 'news'"}};
    start("room = 5\nname = a\n", NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *text = reload(wrong[i].config, STATUS_INVALID);
        ck_said(status_message(), wrong[i].words);
        ck_assert_str_eq(text, "");
        ck_assert_int_eq(v.room, 5);
        ck_assert_str_eq(v.name, "a");
        free(text);
    }
    unlink(path);
    ck_assert_int_eq(options_reload(table), STATUS_INVALID);
    ck_said(status_message(), "No such file");
    finish();
}
END_TEST

START_TEST(the_log_level_changes)
{
    start("", NULL);
    log_options_apply(&v.log, "prog");
    free(reload("log-level = error\n", STATUS_OK));
    log_options_apply_level(&v.log);
    char *text = reload("rest = 5\nlog-level = warn\n", STATUS_OK); // a warning and an info, at level error
    ck_assert_str_eq(text, "");
    free(text);
    finish();
}
END_TEST

START_TEST(without_a_file_there_is_nothing_to_read)
{
    char *argv[] = {"prog"};
    ck_assert_int_eq(options_parse(table, 1, argv, NULL, NULL), STATUS_OK);
    ck_assert_int_eq(options_reload(table), STATUS_OK);
    options_free(table);
}
END_TEST

SUITE("options_reload")
{
    TEST(live_options_change_and_others_are_named);
    TEST(flags_override_the_file);
    TEST(all_files_are_read_again_the_last_one_wins);
    TEST(a_file_with_an_error_changes_nothing);
    TEST(the_log_level_changes);
    TEST(without_a_file_there_is_nothing_to_read);
}
