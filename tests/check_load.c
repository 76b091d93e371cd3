// SPDX-License-Identifier: Apache-2.0
// Reading mapped weights. If a checkpoint is not in memory, one rank of several reads only the header, the pages of its
// slices and the samples of the fingerprint. The kernel does not read ahead into the slices of other ranks. The test
// drops the file's pages and then calls mincore().
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/model/file_fault.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "lib/base/mem.h"
#include "tests/comm_threads.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

enum { RANKS = 4, RANK = 1 };

static struct view {
    int fd;
    size_t bytes, pages, page;
    char *map; // for mincore only
    unsigned char *resident;
} file;

static void look(void)
{
    ck_assert_int_eq(mincore(file.map, file.bytes, file.resident), 0);
}

static size_t count_set(const unsigned char *flags)
{
    size_t n = 0;
    for (size_t p = 0; p < file.pages; p++)
        n += flags[p] & 1;
    return n;
}

static void file_open(const char *dir)
{
    char *path = mem_format("%s/model.safetensors", dir);
    struct stat info;
    file.fd = open(path, O_RDWR);
    ck_assert_int_ge(file.fd, 0);
    ck_assert_int_eq(fstat(file.fd, &info), 0);
    file.page = (size_t)sysconf(_SC_PAGESIZE);
    file.bytes = (size_t)info.st_size;
    file.pages = (file.bytes + file.page - 1) / file.page;
    file.map = mmap(NULL, file.bytes, PROT_READ, MAP_SHARED, file.fd, 0);
    ck_assert_ptr_ne(file.map, MAP_FAILED);
    file.resident = mem_alloc(file.pages);
    free(path);
}

static void file_close(void)
{
    munmap(file.map, file.bytes);
    close(file.fd);
    free(file.resident);
}

// Drops the pages of the file. Returns true if none is in memory. File systems in memory cannot drop pages.
static bool drop(void)
{
    ck_assert_int_eq(fsync(file.fd), 0);
    madvise(file.map, file.bytes, MADV_DONTNEED);
    posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    look();
    return count_set(file.resident) == 0;
}

static void mark(unsigned char *pages, size_t from, size_t bytes)
{
    for (size_t p = from / file.page; p <= (from + bytes - 1) / file.page; p++)
        pages[p] = 1;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

// Returns the pages of the header, of RANK's slices and of the fingerprint's samples.
static unsigned char *slices(const char *dir)
{
    unsigned char *pages = mem_alloc(file.pages);
    struct safetensors *st;
    uint64_t header;
    ck_assert_int_eq(pread(file.fd, &header, sizeof header, 0), sizeof header);
    mark(pages, 0, 8 + header);
    ck_assert_int_eq(safetensors_open(dir, &st), STATUS_OK);
    const char *data = safetensors_at(st, 0)->data; // the first tensor of the file
    for (int i = 1; i < safetensors_count(st); i++)
        if ((const char *)safetensors_at(st, i)->data < data) data = safetensors_at(st, i)->data;
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        const size_t at = 8 + header + (size_t)((const char *)t->data - data), part = t->size_bytes / RANKS;
        const bool columns = ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight");
        const size_t rows = (size_t)t->shape[0], row_bytes = t->size_bytes / rows;
        if (t->n_dims == 1)
            mark(pages, at, t->size_bytes);
        else if (!columns)
            mark(pages, at + RANK * part, part);
        for (size_t r = 0; r < rows && columns; r++)
            mark(pages, at + r * row_bytes + RANK * row_bytes / RANKS, row_bytes / RANKS);
        for (size_t s = 0; s < 4 && t->size_bytes > 256; s++)
            mark(pages, at + (t->size_bytes - 64) / 3 * s, 64);
    }
    safetensors_close(st);
    return pages;
}

static void load_one_rank(const char *dir)
{
    const struct model_options options = {
        .dir = dir, .backend = "cpu", .dtype = "f32", .threads = 1, .max_rows = 1, .max_seqs = 1, .n_kv_blocks = 1};
    struct comm *comms[RANKS];
    struct model *m;
    ck_assert_int_eq(comm_open_threads(RANKS, comms), STATUS_OK);
    ck_assert_msg(model_open(&options, comms[RANK], &m) == STATUS_OK, "%s", status_message());
    model_close(m);
    for (int r = 0; r < RANKS; r++)
        comms[r]->ops->close(comms[r]);
}

START_TEST(a_rank_reads_only_its_slices)
{
    struct tiny_model spec = tiny_model_spec("qwen2"); // with biases
    spec.n_layers = 1;
    spec.head_size = 512;     // o_proj: rows of 16 KiB
    spec.intermediate = 8192; // down_proj: rows of 32 KiB
    char *dir = tiny_model_temp(&spec);
    file_open(dir);
    unsigned char *mine = slices(dir);
    size_t own = count_set(mine);
    ck_assert_uint_lt(own, file.pages / 2);
    if (drop()) {
        load_one_rank(dir);
        look();
        size_t foreign = 0;
        for (size_t p = 0; p < file.pages; p++)
            foreign += (file.resident[p] & 1) > mine[p];
        printf("%zu pages, %zu hold the rank's slices and samples; %zu were read, %zu of them for nothing\n",
               file.pages, own, count_set(file.resident), foreign);
        ck_assert_uint_gt(count_set(file.resident), own / 2);
        ck_assert_uint_eq(foreign, 0);
    } else {
        printf("skipped: pages of files in %s cannot be dropped\n", dir);
    }
    free(mine);
    file_close();
    tiny_model_remove(dir);
}
END_TEST

// Reads a tensor of a file that is truncated after it was opened. Prints the sentence to descriptor 2.
static _Noreturn void read_truncated(const char *dir)
{
    struct safetensors *st;
    char *path = mem_format("%s/model.safetensors", dir);
    if (safetensors_open(dir, &st) != STATUS_OK) _exit(99);
    file_fault_watch(st);
    if (truncate(path, 0) != 0) _exit(98);
    const struct safetensors_tensor *t = safetensors_at(st, safetensors_count(st) - 1);
    _exit(*(const volatile char *)t->data ? 96 : 97);
}

START_TEST(a_file_truncated_while_it_loads_ends_in_one_sentence)
{
    struct tiny_model spec = tiny_model_spec("qwen2");
    char *dir = tiny_model_temp(&spec), text[1024] = "";
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        read_truncated(dir);
    }
    close(ends[1]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_gt(read(ends[0], text, sizeof text - 1), 0);
    close(ends[0]);
    ck_assert_msg(WIFEXITED(status), "status %d: %s", status, text);
    ck_assert_msg(WEXITSTATUS(status) == 2, "status %d: %s", status, text);
    ck_assert_msg(strstr(text, "model.safetensors: a part of the file cannot be read") != NULL, "%s", text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    tiny_model_remove(dir);
}
END_TEST

SUITE("load")
{
    TEST(a_rank_reads_only_its_slices);
    TEST(a_file_truncated_while_it_loads_ends_in_one_sentence);
}
