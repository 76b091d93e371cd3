// SPDX-License-Identifier: Apache-2.0
// The packed weight cache: a second start maps the file and computes the same bits, on one rank and several, in every
// dtype. A file that is damaged, is truncated, or belongs to other weights or a changed checkpoint is ignored and
// replaced. A read-only folder is no failure.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

enum { N_TOKENS = 40 };

static struct forward f;

static struct model_options options_for(const char *dir, const char *dtype, const char *cache)
{
    return (struct model_options){.dir = dir,
                                  .backend = "cpu",
                                  .dtype = dtype,
                                  .packed_cache = cache,
                                  .threads = 2,
                                  .max_rows = 64,
                                  .max_seqs = 2,
                                  .n_kv_blocks = 2 * FORWARD_MAX_BLOCKS};
}

// Number of packed weight caches that this process has mapped.
static int mapped_files(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int n = 0;
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, ".weights") != NULL;
    fclose(maps);
    return n;
}

// Opens a model, runs one prompt and closes the model. Returns true if all ranks used a file. The first call stores the
// logits in *wanted, which is NULL before. Later calls compare with them.
static bool open_and_run(const struct model_options *options, int size, float **wanted)
{
    struct ranks ranks;
    ranks_open(&ranks, options, size);
    int vocab = model_get_config(ranks.model[0])->vocab_size, used = mapped_files();
    int32_t token[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        token[i] = (i * 7 + 3) % vocab;
    forward_start(&f, 1);
    forward_add(&f, 0, 0, token, NULL, N_TOKENS, LOGITS_LAST);
    struct forward_result result = ranks_forward(&ranks, &f.batch);
    size_t bytes = (size_t)vocab * sizeof(float);
    if (!*wanted) *wanted = mem_copy(result.logits, bytes);
    ck_assert_mem_eq(result.logits, *wanted, bytes);
    ranks_close(&ranks);
    ck_assert_int_eq(mapped_files(), 0);
    ck_assert(used == 0 || used == size);
    return used == size;
}

// Returns the path of the only cache file in the folder. The caller frees it.
static char *find_file(const char *dir)
{
    DIR *folder = opendir(dir);
    char *path = NULL;
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strncmp(entry->d_name, "forepack-", 9) != 0) continue;
        ck_assert_msg(!path, "%s beside %s", entry->d_name, path);
        size_t n = strlen(entry->d_name);
        ck_assert_msg(n > 8, "%s was left behind", entry->d_name);
        ck_assert_msg(!strcmp(entry->d_name + n - 8, ".weights"), "%s was left behind", entry->d_name);
        path = mem_format("%s/%s", dir, entry->d_name);
    }
    closedir(folder);
    ck_assert_ptr_nonnull(path);
    return path;
}

START_TEST(the_second_start_maps_and_computes_the_same)
{
    static const char *const dtypes[] = {"f32", "bf16", "int8", "int8-g128", "bf12"};
    static const char *const families[] = {"llama", "llama3", "qwen2", "qwen3", "llama3"};
    for (int tied = 0; tied < 2; tied++)
        for (int size = 1; size <= 4; size *= 2) {
            struct tiny_model spec = tiny_model_spec(families[_i]);
            spec.tied = tied;
            char *dir = tiny_model_temp(&spec);
            float *alone = NULL, *wanted = NULL;
            struct model_options off = options_for(dir, dtypes[_i], "off"), on = options_for(dir, dtypes[_i], "auto");
            ck_assert(!open_and_run(&off, size, &alone));
            wanted = alone;
            ck_assert(!open_and_run(&on, size, &wanted));
            ck_assert(open_and_run(&on, size, &wanted));
            ck_assert(!open_and_run(&off, size, &wanted));
            free(alone);
            tiny_model_remove(dir);
        }
}
END_TEST

struct fixture {
    char *dir, *file;
    struct model_options options;
    float *wanted;
    size_t bytes;
};

static struct fixture saved_fixture(const char *dtype)
{
    struct tiny_model spec = tiny_model_spec("llama");
    struct fixture x = {.dir = tiny_model_temp(&spec)};
    x.options = options_for(x.dir, dtype, "auto");
    ck_assert(!open_and_run(&x.options, 1, &x.wanted));
    x.file = find_file(x.dir);
    struct stat info;
    ck_assert_int_eq(stat(x.file, &info), 0);
    x.bytes = (size_t)info.st_size;
    return x;
}

static void fixture_free(struct fixture *x)
{
    tiny_model_remove(x->dir);
    free(x->file);
    free(x->wanted);
}

// Expects that the file is not used and that a valid one replaces it.
static void expect_replaced(struct fixture *x)
{
    ck_assert(!open_and_run(&x->options, 1, &x->wanted));
    ck_assert(open_and_run(&x->options, 1, &x->wanted));
    char *file = find_file(x->dir);
    ck_assert_str_eq(file, x->file);
    free(file);
}

static void flip(const char *path, size_t at)
{
    int fd = open(path, O_RDWR);
    unsigned char byte;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x40;
    ck_assert(pwrite(fd, &byte, 1, (off_t)at) == 1);
    close(fd);
}

START_TEST(a_damaged_header_or_table_is_detected)
{
    struct fixture x = saved_fixture("int8");
    // The header is 8 + 2 * 4 + 48 + 4 * 8 bytes, the choice of a prefetch 24 (check_stream_tuning), a table entry
    // 2 * 8 + 2 * 4 + 2 * 8.
    for (size_t at = 0; at < 120 + 3 * 40; at += at < 95 ? 1 : at == 95 ? 25 : 7) {
        flip(x.file, at);
        expect_replaced(&x);
    }
    fixture_free(&x);
}
END_TEST

START_TEST(a_truncated_or_overlong_file_is_detected)
{
    struct fixture x = saved_fixture("bf16");
    const size_t lengths[] = {0,   1,    8,           95,          96,          119,           120,
                              200, 4096, x.bytes / 2, x.bytes - 1, x.bytes + 1, x.bytes + 4096};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        ck_assert_int_eq(truncate(x.file, (off_t)lengths[i]), 0);
        expect_replaced(&x);
    }
    fixture_free(&x);
}
END_TEST

START_TEST(the_file_of_a_start_that_was_killed_is_removed)
{
    struct fixture x = saved_fixture("f32");
    char *left = mem_format("%s.new-aB3dE6", x.file);
    ck_assert_int_eq(rename(x.file, left), 0);
    expect_replaced(&x);
    ck_assert_int_ne(access(left, F_OK), 0);
    free(left);
    fixture_free(&x);
}
END_TEST

START_TEST(files_of_other_weights_are_detected)
{
    struct fixture x = saved_fixture("bf16"), f32 = saved_fixture("f32");
    // A file of another dtype, and a checkpoint that was written again: same name, same fingerprint, another
    // modification time.
    ck_assert_int_eq(rename(f32.file, x.file), 0);
    expect_replaced(&x);
    char *weights = mem_format("%s/model.safetensors", x.dir);
    const struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    ck_assert_int_eq(utimensat(AT_FDCWD, weights, times, 0), 0);
    expect_replaced(&x);
    free(weights);
    fixture_free(&f32);
    fixture_free(&x);
}
END_TEST

// With two ranks, both have matrices of the same shapes.
START_TEST(a_rank_never_maps_the_file_of_another_rank)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *own = NULL;
    struct model_options options = options_for(dir, "bf16", "auto");
    float *wanted = NULL;
    ck_assert(!open_and_run(&options, 2, &wanted));
    ck_assert(open_and_run(&options, 2, &wanted));
    DIR *folder = opendir(dir);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strstr(entry->d_name, "rank0of2")) own = mem_format("%s/%s", dir, entry->d_name);
    }
    closedir(folder);
    ck_assert_ptr_nonnull(own);
    char *other = mem_string(own);
    *(strstr(other, "rank0of2") + 4) = '1';
    ck_assert_int_eq(rename(other, own), 0);
    ck_assert(!open_and_run(&options, 2, &wanted));
    ck_assert(open_and_run(&options, 2, &wanted));
    free(own);
    free(other);
    free(wanted);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(several_models_and_types_share_a_folder)
{
    char folder[] = "/tmp/forepack-cache-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct tiny_model spec = tiny_model_spec("llama"), other = spec;
    other.seed++;
    char *dirs[2] = {tiny_model_temp(&spec), tiny_model_temp(&other)};
    float *wanted[4] = {0};
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            struct model_options options = options_for(dirs[i / 2], i % 2 ? "int8" : "bf16", folder);
            ck_assert(open_and_run(&options, 1, &wanted[i]) == (round > 0));
        }
    for (int i = 0; i < 4; i++)
        free(wanted[i]);
    tiny_model_remove(dirs[0]);
    tiny_model_remove(dirs[1]);
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list));)
        if (entry->d_name[0] != '.') unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

// A file that another user may have written, a link in place of the file, and a link in place of the temporary file.
START_TEST(files_and_links_of_other_users_are_not_used)
{
    struct fixture x = saved_fixture("f32");
    ck_assert_int_eq(chmod(x.file, 0666), 0);
    expect_replaced(&x);
    char *moved = mem_format("%s/moved", x.dir), *planted = mem_format("%s.%d", x.file, (int)getpid());
    ck_assert_int_eq(rename(x.file, moved), 0);
    ck_assert_int_eq(symlink(moved, x.file), 0);
    ck_assert_int_eq(symlink(moved, planted), 0);
    ck_assert(!open_and_run(&x.options, 1, &x.wanted));
    ck_assert_int_eq(unlink(planted), 0);
    ck_assert(open_and_run(&x.options, 1, &x.wanted));
    struct stat info;
    ck_assert_int_eq(lstat(x.file, &info), 0);
    ck_assert(S_ISREG(info.st_mode));
    unlink(moved);
    free(moved);
    free(planted);
    fixture_free(&x);
}
END_TEST

START_TEST(the_umask_decides_who_may_read_the_file)
{
    struct stat info;
    for (int i = 0; i < 2; i++) {
        mode_t before = umask(i ? 077 : 022);
        struct fixture x = saved_fixture("f32");
        ck_assert_int_eq(stat(x.file, &info), 0);
        ck_assert_int_eq(info.st_mode & 0777, i ? 0600 : 0644);
        fixture_free(&x);
        umask(before);
    }
}
END_TEST

START_TEST(a_missing_folder_is_no_failure)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *nowhere = mem_format("%s/nowhere", dir);
    struct model_options options = options_for(dir, "bf16", nowhere);
    float *wanted = NULL;
    for (int i = 0; i < 2; i++)
        ck_assert(!open_and_run(&options, 1, &wanted));
    free(wanted);
    free(nowhere);
    tiny_model_remove(dir);
}
END_TEST

// Packs with so many threads and returns the bytes of the file, which is removed again.
static char *packed_bytes(const char *dir, const char *dtype, int threads, size_t *bytes_p)
{
    struct model_options options = options_for(dir, dtype, "auto");
    float *wanted = NULL;
    options.threads = threads;
    ck_assert(!open_and_run(&options, 1, &wanted));
    char *path = find_file(dir), *bytes;
    ck_assert_int_eq(file_text_read(path, 1 << 28, &bytes, bytes_p), STATUS_OK);
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    free(wanted);
    return bytes;
}

// Threads pack shares of each weight while other threads read ahead.
START_TEST(any_number_of_threads_packs_the_same_bytes)
{
    static const char *const dtypes[] = {"f32", "bf16", "int8", "int8-g128", "bf12"};
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    size_t n, m;
    char *one = packed_bytes(dir, dtypes[_i], 1, &n);
    for (int threads = 2; threads <= 3; threads++) {
        char *several = packed_bytes(dir, dtypes[_i], threads, &m);
        ck_assert_uint_eq(m, n);
        ck_assert_mem_eq(several, one, n);
        free(several);
    }
    free(one);
    tiny_model_remove(dir);
}
END_TEST

SUITE("packed_cache")
{
    TIMEOUT(120);
    LOOP(the_second_start_maps_and_computes_the_same, 0, 5);
    TEST(a_damaged_header_or_table_is_detected);
    TEST(a_truncated_or_overlong_file_is_detected);
    TEST(the_file_of_a_start_that_was_killed_is_removed);
    TEST(files_of_other_weights_are_detected);
    TEST(a_rank_never_maps_the_file_of_another_rank);
    TEST(several_models_and_types_share_a_folder);
    TEST(files_and_links_of_other_users_are_not_used);
    TEST(the_umask_decides_who_may_read_the_file);
    TEST(a_missing_folder_is_no_failure);
    LOOP(any_number_of_threads_packs_the_same_bytes, 0, 5);
}
