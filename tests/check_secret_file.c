// SPDX-License-Identifier: Apache-2.0
// Files of secrets: their permissions, their contents, and changes to them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/secret_file.h"
#include "tests/suite.h"

static char path[] = "/tmp/forepack-secret-XXXXXX";

static void write_file(const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    chmod(path, mode);
}

START_TEST(the_secret_is_read_without_white_space)
{
    char *secret;
    write_file("  s3cret\r\n\n", 0640);
    ck_assert_int_eq(secret_file_read(path, &secret), STATUS_OK);
    ck_assert_str_eq(secret, "s3cret");
    free(secret);
}
END_TEST

START_TEST(files_that_hold_no_secret_are_refused)
{
    static const char *const texts[] = {"", " \n", "two words", "one\ntwo\n"};
    char *none;
    for (int i = 0; i < 4; i++) {
        write_file(texts[i], 0600);
        ck_assert_int_eq(secret_file_read(path, &none), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(status_message(), "must have one line with one word"));
    }
    write_file("s3cret", 0604);
    ck_assert_int_eq(secret_file_read(path, &none), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "every user can read this secret"));
    ck_assert_int_eq(file_read_small("/dev/null", false, &none), STATUS_INVALID);
    ck_assert_int_eq(file_read_small("/", false, &none), STATUS_INVALID);
    ck_assert_int_eq(secret_file_read("/nowhere/at/all", &none), STATUS_NOT_FOUND);
    ck_assert_int_eq(truncate(path, FILE_SECRET_BYTES_MAX + 1), 0);
    ck_assert_int_eq(file_read_small(path, false, &none), STATUS_INVALID);
}
END_TEST

START_TEST(a_changed_file_has_another_stamp)
{
    write_file("one", 0600);
    struct file_stamp stamp = {0};
    ck_assert(file_stamp_update(&stamp, path));
    ck_assert(!file_stamp_update(&stamp, path));
    write_file("three", 0600);
    ck_assert(file_stamp_update(&stamp, path));
    unlink(path);
    ck_assert(file_stamp_update(&stamp, path));
    ck_assert_uint_eq(stamp.inode, 0);
}
END_TEST

static void make_file(void)
{
    const int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
}

static void remove_file(void)
{
    unlink(path);
}

SUITE("secret file")
{
    FIXTURE_ONCE(make_file, remove_file);
    TEST(the_secret_is_read_without_white_space);
    TEST(files_that_hold_no_secret_are_refused);
    TEST(a_changed_file_has_another_stamp);
}
