// SPDX-License-Identifier: Apache-2.0
// The costs that a node keeps for its next start: they come back as they were written, and a file that is damaged, has
// another format or belongs to another node is not used.
#include "engine/kept_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "tests/suite.h"

static const char node[] = "worker 1.0, machine 0123456789abcdef, bf16 weights";
static const struct start_costs costs = {
    3, {{1, 1, 52311}, {64, 2080, 190001}, {1024, INT64_C(524800), INT64_C(3000000000)}}};

static char folder[] = "/tmp/check_kept_costs-XXXXXX";
static char *path;

static void set_up(void)
{
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    path = mem_format("%s/model-worker.costs", folder);
}

static void tear_down(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); // no temporary file is left
    free(path);
}

static bool is_read(void)
{
    struct start_costs read = {0};
    return kept_costs_read(path, node, &read);
}

// Reads the file into text, and returns its length.
static size_t file_get(char text[1024])
{
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t n = fread(text, 1, 1024, file);
    fclose(file);
    return n;
}

static void file_set(const char *text, size_t n)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, n, file), n);
    fclose(file);
}

START_TEST(costs_come_back_as_they_were_written)
{
    struct start_costs read = {0};
    ck_assert(!is_read());
    for (int time = 0; time < 2; time++) {
        kept_costs_write(path, node, &costs);
        ck_assert(kept_costs_read(path, node, &read));
        ck_assert_int_eq(read.n, costs.n);
        for (int i = 0; i < costs.n; i++) {
            ck_assert_int_eq(read.passes[i].rows, costs.passes[i].rows);
            ck_assert_int_eq(read.passes[i].pairs, costs.passes[i].pairs);
            ck_assert_int_eq(read.passes[i].us, costs.passes[i].us);
        }
    }
}
END_TEST

START_TEST(costs_of_another_node_are_not_used)
{
    struct start_costs read = {0};
    kept_costs_write(path, node, &costs);
    ck_assert(!kept_costs_read(path, "worker 1.0, machine 0123456789abcdef, int8 weights", &read));
    ck_assert(!kept_costs_read(path, "worker 1.0, machine 0123456789abcdef, bf16", &read));
    ck_assert_int_eq(read.n, 0);
}
END_TEST

// Changes each byte, cuts the file at each length, and appends to it.
START_TEST(a_damaged_file_is_not_used)
{
    char text[1024];
    kept_costs_write(path, node, &costs);
    const size_t n = file_get(text);
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 1;
        file_set(text, n);
        ck_assert_msg(!is_read(), "byte %zu", i);
        text[i] ^= 1;
        file_set(text, i);
        ck_assert_msg(!is_read(), "%zu bytes", i);
    }
    text[n] = 0;
    file_set(text, n + 1);
    ck_assert(!is_read());
    memset(text + n, '1', sizeof text - n);
    file_set(text, sizeof text);
    ck_assert(!is_read());
    file_set(text, n);
    ck_assert(is_read());
}
END_TEST

START_TEST(a_file_that_others_may_write_is_not_used)
{
    kept_costs_write(path, node, &costs);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert(!is_read());
}
END_TEST

// The start goes on if there is no place for the file.
START_TEST(a_folder_that_does_not_exist_is_no_failure)
{
    free(path);
    path = mem_format("%s/none/model-worker.costs", folder);
    kept_costs_write(path, node, &costs);
    ck_assert(!is_read());
}
END_TEST

SUITE("kept_costs")
{
    FIXTURE(set_up, tear_down);
    TEST(costs_come_back_as_they_were_written);
    TEST(costs_of_another_node_are_not_used);
    TEST(a_damaged_file_is_not_used);
    TEST(a_file_that_others_may_write_is_not_used);
    TEST(a_folder_that_does_not_exist_is_no_failure);
}
