// SPDX-License-Identifier: Apache-2.0
// The folder whose files are the GPUs of fake_nvml.c. Failures abort the test.
#pragma once

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char gpu_folder[] = "/tmp/forepack-gpus-XXXXXX";

static void gpu_files_open(void)
{
    ck_assert_ptr_nonnull(mkdtemp(gpu_folder));
    setenv("FAKE_NVML", gpu_folder, 1);
}

static void gpu_files_close(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", gpu_folder);
    ck_assert_int_eq(system(command), 0);
}

static bool gpu_file_exists(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", gpu_folder, name);
    return access(path, F_OK) == 0;
}

// Writes by renaming: the library never reads half a file.
static void gpu_file_write(const char *address, const char *lines)
{
    char path[128], made[128];
    snprintf(path, sizeof path, "%s/%s", gpu_folder, address);
    snprintf(made, sizeof made, "%s/new", gpu_folder);
    FILE *file = fopen(made, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(lines, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(made, path), 0);
}
