// SPDX-License-Identifier: Apache-2.0
// base/new_file: a new file replaces the old one whole or not at all and follows no link. Files that killed processes
// left are removed. Cache files that another user may have written are not opened.
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/new_file.h"
#include "tests/suite.h"

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

// Leaves the file as if the process had been killed: the file stays, its lock does not.
static void abandon(struct new_file *file)
{
    close(file->fd);
    free(file->path);
    free(file->temporary);
}

START_TEST(leftovers_of_killed_processes_go)
{
    static const char *const others[] = {"file.new-12345", "file.new-1234567", "file.new-1234_6", "file.sha256",
                                         "fil.new-123456"};
    enum { N = sizeof others / sizeof *others };
    char names[N][128], linked[128], left[128];
    struct new_file killed, held;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s/%s", folder, others[i]);
        put(names[i], "other", 0600);
    }
    put(path, "old", 0644);
    put(beside, "linked", 0600);
    snprintf(linked, sizeof linked, "%s/file.new-link01", folder);
    ck_assert_int_eq(symlink(beside, linked), 0);
    ck_assert_int_eq(new_file_open(&killed, path), STATUS_OK);
    ck_assert_int_eq(new_file_open(&held, path), STATUS_OK);
    strcpy(left, killed.temporary);
    abandon(&killed);
    new_file_remove_leftovers(path);
    ck_assert_int_ne(access(left, F_OK), 0);
    ck_assert_int_eq(access(held.temporary, F_OK), 0);
    new_file_discard(&held);
    expect_text(path, "old");
    expect_text(linked, "linked");
    ck_assert_int_eq(unlink(linked), 0);
    for (int i = 0; i < N; i++) {
        expect_text(names[i], "other");
        unlink(names[i]);
    }
}
END_TEST

static void *remove_leftovers(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        new_file_remove_leftovers(path);
    return NULL;
}

// A file is created before it is locked.
START_TEST(a_file_that_is_being_opened_stays)
{
    atomic_bool stop = false;
    pthread_t thread;
    int lost = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, remove_leftovers, &stop), 0);
    for (int i = 0; i < 3000; i++) {
        struct new_file file;
        ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
        lost += access(file.temporary, F_OK) != 0;
        new_file_discard(&file);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ck_assert_int_eq(lost, 0);
}
END_TEST

static void expect_wrong(const char *wanted)
{
    const char *wrong;
    ck_assert_int_eq(cache_file_open(path, false, &wrong), -1);
    if (wanted) {
        ck_assert_ptr_nonnull(wrong);
        ck_assert_msg(strstr(wrong, wanted) != NULL, "%s", wrong);
    } else {
        ck_assert_ptr_null(wrong);
    }
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
    if (geteuid() == 0) { // otherwise files cannot change their owner
        ck_assert_int_eq(chown(path, 12345, 12345), 0);
        expect_wrong("it belongs to another user");
        ck_assert_int_eq(cache_file_open(path, true, &wrong), -1); // also refused to the owner of the folder
    }
}
END_TEST

START_TEST(the_owner_of_a_folder_is_trusted_on_request_only)
{
    const char *wrong;
    if (geteuid() != 0) return; // a folder cannot change its owner
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
    chmod(folder, 01777); // like /tmp
    ck_assert_int_eq(new_file_open(&file, path), STATUS_OK);
    new_file_discard(&file);
}
END_TEST

SUITE("new file")
{
    FIXTURE(setup, teardown);
    TEST(a_commit_replaces_and_a_discard_does_not);
    TEST(a_link_is_replaced_and_not_followed);
    TEST(leftovers_of_killed_processes_go);
    TEST(a_file_that_is_being_opened_stays);
    TEST(cache_files_of_others_are_not_opened);
    TEST(the_owner_of_a_folder_is_trusted_on_request_only);
    TEST(a_folder_that_every_user_may_change_is_refused);
}
