// SPDX-License-Identifier: Apache-2.0
// base/new_file: a new file replaces the old one whole or not at all, follows no link, and cache files that another
// user may have written are not opened.
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/new_file.h"

static char folder[64], path[128], beside[128];

static void setup(void)
{
    strcpy(folder, "/tmp/forepack-new-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(beside, sizeof beside, "%s/beside", folder);
}

static void teardown(void)
{
    unlink(path);
    unlink(beside);
    ck_assert_int_eq(rmdir(folder), 0); // nothing was left behind
}

static void put(const char *at, const char *text, mode_t mode)
{
    FILE *file = fopen(at, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fchmod(fileno(file), mode);
    fclose(file);
}

static void expect_text(const char *at, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(at, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(found, 1, sizeof found - 1, file), strlen(text));
    ck_assert_str_eq(found, text);
    fclose(file);
}

START_TEST(a_commit_replaces_and_a_discard_does_not)
{
    struct new_file file;
    put(path, "old", 0644);
    ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
    ck_assert_int_eq(write(file.fd, "newer", 5), 5);
    expect_text(path, "old");
    new_file_discard(&file);
    expect_text(path, "old");
    ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
    ck_assert_int_eq(write(file.fd, "newer", 5), 5);
    ck_assert_int_eq(new_file_commit(&file), STATUS_OK);
    expect_text(path, "newer");
}
END_TEST

START_TEST(a_link_is_replaced_and_not_followed)
{
    struct new_file file;
    put(beside, "victim", 0644);
    ck_assert_int_eq(symlink(beside, path), 0);
    ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
    ck_assert_int_eq(write(file.fd, "newer", 5), 5);
    ck_assert_int_eq(new_file_commit(&file), STATUS_OK);
    expect_text(path, "newer");
    expect_text(beside, "victim");
}
END_TEST

static void expect_wrong(const char *wanted)
{
    const char *wrong;
    ck_assert_int_eq(cache_file_open(path, false, &wrong), -1);
    if (wanted)
        ck_assert_msg(wrong && strstr(wrong, wanted), "%s", wrong);
    else
        ck_assert_ptr_null(wrong);
}

START_TEST(cache_files_of_others_are_not_opened)
{
    const char *wrong;
    expect_wrong(NULL); // absent
    put(path, "cache", 0644);
    int fd = cache_file_open(path, false, &wrong);
    ck_assert_int_ge(fd, 0);
    close(fd);
    chmod(path, 0664);
    expect_wrong("other users may write it");
    chmod(path, 0646);
    expect_wrong("other users may write it");
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_wrong("not a regular file");
    unlink(path);
    put(beside, "cache", 0644);
    ck_assert_int_eq(symlink(beside, path), 0);
    expect_wrong("symbolic links");
    unlink(path);
    put(path, "cache", 0644);
    if (geteuid() == 0) { // else no file can be given away
        ck_assert_int_eq(chown(path, 12345, 12345), 0);
        expect_wrong("it belongs to another user");
        ck_assert_int_eq(cache_file_open(path, true, &wrong), -1); // nor to the owner of its folder
    }
}
END_TEST

START_TEST(the_owner_of_a_folder_is_trusted_on_request_only)
{
    const char *wrong;
    if (geteuid() != 0) return; // no folder can be given away
    put(path, "cache", 0644);
    ck_assert_int_eq(chown(folder, 12345, 12345), 0);
    expect_wrong("its folder belongs to another user");
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    expect_wrong("its folder belongs to another user");
    int fd = cache_file_open(path, true, &wrong);
    ck_assert_int_ge(fd, 0);
    close(fd);
}
END_TEST

START_TEST(a_folder_that_every_user_may_change_is_refused)
{
    struct new_file file;
    put(path, "cache", 0644);
    chmod(folder, 0777);
    expect_wrong("every user may replace files");
    ck_assert_int_eq(new_file_open(&file, path), STATUS_INVALID);
    chmod(folder, 01777); // as /tmp
    ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
    new_file_discard(&file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("new file");
    TCase *tcase = tcase_create("files");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_commit_replaces_and_a_discard_does_not);
    tcase_add_test(tcase, a_link_is_replaced_and_not_followed);
    tcase_add_test(tcase, cache_files_of_others_are_not_opened);
    tcase_add_test(tcase, the_owner_of_a_folder_is_trusted_on_request_only);
    tcase_add_test(tcase, a_folder_that_every_user_may_change_is_refused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
