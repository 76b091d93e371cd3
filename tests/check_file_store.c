// SPDX-License-Identifier: Apache-2.0
// router/batch: the files of tenants.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

#include "tests/batch_folder.h"

static char id[BATCH_ID_ROOM], other[BATCH_ID_ROOM];

static void expect_text(const char *tenant, const char *of, const char *text)
{
    char *found = stored_text(tenant, of);
    ck_assert_ptr_nonnull(found);
    ck_assert_str_eq(found, text);
    free(found);
}

static int entries(const char *folder)
{
    int n = 0;
    char *path = mem_format("%s/%s", batch_folder, folder);
    DIR *dir = opendir(path);
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    free(path);
    return n;
}

START_TEST(a_file_survives_a_restart)
{
    struct file_info info;
    ck_assert_int_eq(store_text("a", "../../etc/passwd", "hello", id), STATUS_OK);
    store_reopen();
    expect_text("a", id, "hello");
    ck_assert_int_eq(file_store_get(store, "a", id, &info), STATUS_OK);
    ck_assert_str_eq(info.name, "../../etc/passwd");
    ck_assert_str_eq(info.purpose, "batch");
    ck_assert_uint_eq(info.bytes, 5);
    file_info_fini(&info);
    ck_assert_int_eq(file_store_get_use(store).files, 1);
    ck_assert_int_eq(entries("files"), 2);
}
END_TEST

START_TEST(another_tenant_does_not_find_a_file)
{
    struct file_info info;
    int fd;
    ck_assert_int_eq(store_text("a", "x", "hello", id), STATUS_OK);
    ck_assert_int_eq(file_store_get(store, "b", id, &info), STATUS_NOT_FOUND);
    ck_assert_int_eq(file_store_read(store, "b", id, &fd), STATUS_NOT_FOUND);
    ck_assert_int_eq(file_store_delete(store, "b", id), STATUS_NOT_FOUND);
    ck_assert_int_eq(file_store_link(store, "b", id, "/tmp/none"), STATUS_NOT_FOUND);
    expect_text("a", id, "hello");
}
END_TEST

START_TEST(a_deleted_file_is_gone_and_its_room_is_free)
{
    ck_assert_int_eq(store_text("a", "x", "hello", id), STATUS_OK);
    ck_assert_int_eq(file_store_delete(store, "a", id), STATUS_OK);
    ck_assert_ptr_null(stored_text("a", id));
    ck_assert_int_eq(file_store_delete(store, "a", id), STATUS_NOT_FOUND);
    ck_assert_uint_eq(file_store_get_use(store).bytes, 0);
    ck_assert_int_eq(entries("files"), 0);
}
END_TEST

// Tries each set of files that a crash can leave of one file. _i has bit 0 for the content, 1 for the record, and 2 for
// the unfinished content.
START_TEST(a_crash_leaves_a_whole_file_or_none)
{
    static const char *const suffixes[] = {"", ".json", ".part"};
    ck_assert_int_eq(store_text("a", "x", "hello", id), STATUS_OK);
    ck_assert_int_eq(store_text("a", "y", "world", other), STATUS_OK);
    char *part = mem_format("%s/files/%s.part", batch_folder, id);
    close(open(part, O_WRONLY | O_CREAT, 0600));
    free(part);
    for (int i = 0; i < 3; i++) {
        char *path = mem_format("%s/files/%s%s", batch_folder, id, suffixes[i]);
        if (!(_i >> i & 1)) unlink(path);
        free(path);
    }
    bool whole = (_i & 3) == 3;
    store_reopen();
    char *text = stored_text("a", id);
    ck_assert_int_eq(text != NULL, whole);
    free(text);
    expect_text("a", other, "world");
    // A content without a record cannot come from a crash: it is left alone.
    ck_assert_int_eq(entries("files"), whole ? 4 : _i & 1 ? 3 : 2);
}
END_TEST

START_TEST(an_unfinished_upload_leaves_nothing)
{
    struct file_upload *upload;
    ck_assert_int_eq(file_upload_begin(store, "a", &upload), STATUS_OK);
    ck_assert_int_eq(file_upload_write(upload, "x", 1), STATUS_OK);
    ck_assert_int_eq(entries("files"), 1);
    file_upload_discard(upload);
    ck_assert_int_eq(entries("files"), 0);
    ck_assert_uint_eq(file_store_get_use(store).bytes, 0);
}
END_TEST

START_TEST(bytes_are_bounded_for_a_file_a_tenant_and_all)
{
    char *mib = mem_alloc((1 << 20) + 2);
    memset(mib, 'x', 1 << 20);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(store_text("a", "x", mib, id), STATUS_OK);
    ck_assert_int_eq(store_text("a", "x", "y", other), STATUS_EXHAUSTED);
    ck_assert_int_eq(store_text("b", "x", mib, other), STATUS_OK);
    ck_assert_int_eq(store_text("b", "x", "y", other), STATUS_EXHAUSTED);
    ck_assert_int_eq(file_store_delete(store, "a", id), STATUS_OK);
    ck_assert_int_eq(store_text("b", "x", "y", other), STATUS_OK);
    mib[1 << 20] = 'x';
    ck_assert_int_eq(store_text("a", "x", mib, other), STATUS_OUT_OF_RANGE);
    free(mib);
}
END_TEST

START_TEST(files_are_bounded_for_a_tenant_and_all)
{
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(store_text("a", "x", "y", id), STATUS_OK);
    ck_assert_int_eq(store_text("a", "x", "y", other), STATUS_EXHAUSTED);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(store_text("b", "x", "y", other), STATUS_OK);
    ck_assert_int_eq(store_text("b", "x", "y", other), STATUS_EXHAUSTED);
    store_reopen();
    ck_assert_int_eq(store_text("b", "x", "y", other), STATUS_EXHAUSTED);
}
END_TEST

START_TEST(a_full_disk_refuses_an_upload_and_leaves_nothing)
{
    struct rlimit before, small = {1024, 1024};
    char text[4097];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    ck_assert_int_eq(store_text("a", "x", text, id), STATUS_EXHAUSTED);
    setrlimit(RLIMIT_FSIZE, &before);
    ck_assert_int_eq(entries("files"), 0);
    ck_assert_uint_eq(file_store_get_use(store).bytes, 0);
}
END_TEST

START_TEST(expired_files_are_deleted)
{
    struct file_upload *upload;
    struct file_info info = {.name = mem_string("x"), .purpose = mem_string("batch"), .expires_s = 60};
    ck_assert_int_eq(file_upload_begin(store, "a", &upload), STATUS_OK);
    ck_assert_int_eq(file_upload_commit(upload, &info), STATUS_OK);
    file_store_expire(store, info.expires_s - 1);
    ck_assert_int_eq(entries("files"), 2);
    file_store_expire(store, info.expires_s);
    ck_assert_int_eq(entries("files"), 0);
    file_info_fini(&info);
}
END_TEST

START_TEST(a_list_has_pages_in_both_orders)
{
    char ids[5][BATCH_ID_ROOM];
    struct file_info *list;
    int n;
    bool more;
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(store_text(i == 2 ? "b" : "a", "x", "y", ids[i]), STATUS_OK);
    struct file_query query = {.tenant = "a", .limit = 2};
    ck_assert_int_eq(file_store_list(store, &query, &list, &n, &more), STATUS_OK);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(more, true);
    ck_assert_str_eq(list[0].id, ids[4]);
    ck_assert_str_eq(list[1].id, ids[3]);
    for (int i = 0; i < n; i++)
        file_info_fini(&list[i]);
    free(list);
    query = (struct file_query){.tenant = "a", .limit = 9, .after = ids[0], .oldest_first = true, .purpose = "batch"};
    ck_assert_int_eq(file_store_list(store, &query, &list, &n, &more), STATUS_OK);
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(more, false);
    ck_assert_str_eq(list[0].id, ids[1]);
    for (int i = 0; i < n; i++)
        file_info_fini(&list[i]);
    free(list);
    query.after = ids[2]; // another tenant's
    ck_assert_int_eq(file_store_list(store, &query, &list, &n, &more), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(an_adopted_file_exists_once)
{
    char *path = mem_format("%s/results", batch_folder);
    struct file_info info = {.tenant = "a", .name = "r", .purpose = "batch_output"};
    batch_id_make(FILE_ID_PREFIX, info.id);
    FILE *file = fopen(path, "w");
    fputs("line\n", file);
    fclose(file);
    ck_assert_int_eq(file_store_charge(store, "a", 5), STATUS_OK);
    ck_assert_int_eq(file_store_adopt(store, path, &info), STATUS_OK);
    ck_assert_int_eq(file_store_adopt(store, path, &info), STATUS_OK); // after a crash
    expect_text("a", info.id, "line\n");
    ck_assert_int_eq(file_store_get_use(store).files, 1);
    ck_assert_uint_eq(file_store_get_use(store).bytes, 5);
    free(path);
}
END_TEST

START_TEST(a_folder_serves_one_router)
{
    struct file_store *second;
    ck_assert_int_eq(file_store_open(&store_defaults, &second), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "another router"));
}
END_TEST

START_TEST(only_ids_that_the_router_makes_are_valid)
{
    static const char *const wrong[] = {"",
                                        "file-",
                                        "file-../../../../etc/passwd",
                                        "file-0123456789abcdef0123456789ABCDEF",
                                        "file-0123456789abcdef0123456789abcdef0",
                                        "batch_0123456789abcdef0123456789abcdef"};
    batch_id_make(FILE_ID_PREFIX, id);
    ck_assert(batch_id_valid(FILE_ID_PREFIX, id));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert(!batch_id_valid(FILE_ID_PREFIX, wrong[i]));
}
END_TEST

SUITE("file_store")
{
    FIXTURE(folder_create, folder_remove);
    TEST(a_file_survives_a_restart);
    TEST(another_tenant_does_not_find_a_file);
    TEST(a_deleted_file_is_gone_and_its_room_is_free);
    LOOP(a_crash_leaves_a_whole_file_or_none, 0, 8);
    TEST(an_unfinished_upload_leaves_nothing);
    TEST(bytes_are_bounded_for_a_file_a_tenant_and_all);
    TEST(files_are_bounded_for_a_tenant_and_all);
    TEST(a_full_disk_refuses_an_upload_and_leaves_nothing);
    TEST(expired_files_are_deleted);
    TEST(a_list_has_pages_in_both_orders);
    TEST(an_adopted_file_exists_once);
    TEST(a_folder_serves_one_router);
    TEST(only_ids_that_the_router_makes_are_valid);
}
