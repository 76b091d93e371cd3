// SPDX-License-Identifier: Apache-2.0
// A CUDA module that cannot be used. One sentence names the reason, with both versions if they differ. `auto` serves on
// the CPU, with a warning if the machine may have a GPU. The module next to this program is a link to a build of
// fake_cuda_module.c.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/module.h"
#include "kernels/module_version.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

static char folder[4096]; // of this program

static char *beside(const char *name)
{
    return mem_format("%s/%s", folder, name);
}

static void install(const char *fake)
{
    char *module = beside("libforepack_cuda.so");
    unlink(module);
    ck_assert_int_eq(symlink(fake, module), 0);
    free(module);
}

static void check_refused(const char *fake, enum status status, const char *const says[2])
{
    struct cuda_module module;
    install(fake);
    ck_assert_int_eq(cuda_module_load(&module), status);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(status_message(), says[i]) != NULL, "%s", status_message());
    ck_assert_ptr_null(strchr(status_message(), '\n'));
}

START_TEST(a_module_of_another_build_is_refused_with_both_versions)
{
    static const char *const both[] = {
        "libforepack_cuda.so has version 0.0.9+12345678, this program has " CUDA_MODULE_VERSION,
        ": install both from one build"};
    check_refused("other_version.so", STATUS_UNSUPPORTED, both);
    check_refused("other_version_lacks.so", STATUS_UNSUPPORTED, both); // cannot be loaded at all
}
END_TEST

START_TEST(a_module_without_a_version_is_refused)
{
    static const char *const says[] = {"has version unknown, this program has " CUDA_MODULE_VERSION,
                                       ": install both from one build"};
    check_refused("no_version.so", STATUS_UNSUPPORTED, says);
    check_refused("no_version_lacks.so", STATUS_UNSUPPORTED, says);
}
END_TEST

START_TEST(what_a_module_of_this_build_lacks_is_named)
{
    static const char *const says[] = {"the CUDA backend cannot be loaded: ", "no_program_has_this"};
    check_refused("lacks.so", STATUS_NOT_FOUND, says);
}
END_TEST

START_TEST(a_module_of_this_build_is_loaded)
{
    struct cuda_module module;
    install("same_version.so");
    ck_assert_msg(cuda_module_load(&module) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(module.list_devices(NULL, 0), 0);
}
END_TEST

static const struct backend_shape shape = {.n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_size = 16,
                                           .rope.inv_freq = (float[8]){1},
                                           .max_rows = 1,
                                           .max_seqs = 1,
                                           .max_context = 16,
                                           .n_kv_blocks = 1};

// Opens `auto` with the log in a file. Returns the file's text.
static char *log_of_auto(void)
{
    struct backend *b;
    FILE *log = tmpfile();
    const int standard_error = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    const enum status status = backend_open("auto", &shape, DTYPE_BF16, 1, &b);
    fflush(stderr);
    dup2(standard_error, STDERR_FILENO);
    close(standard_error);
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_str_eq(b->ops->name, "cpu");
    b->ops->close(b);
    char *text = calloc(1, 4096);
    rewind(log);
    ck_assert_uint_gt(fread(text, 1, 4095, log), 0);
    fclose(log);
    return text;
}

static void check_level(const char *level, const char *reason)
{
    char *text = log_of_auto(), *event = strstr(text, "backend_chosen backend=cpu reason="), *at = strstr(text, level);
    ck_assert_msg(event != NULL, "%s", text);
    ck_assert_msg(at != NULL, "%s", text);
    ck_assert_msg(at < event, "%s", text);
    ck_assert_msg(strstr(event, reason) != NULL, "%s", text);
    free(text);
}

START_TEST(auto_warns_where_a_gpu_may_be)
{
    char devices[] = "/tmp/forepack-devices-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(devices));
    char *device = mem_format("%s/nvidia0", devices);
    cuda_device_folder = devices;
    static const char *const fakes[][2] = {{"other_version_lacks.so", "has version 0.0.9+12345678, this program has "},
                                           {"lacks.so", "the CUDA backend cannot be loaded: "}};
    for (int i = 0; i < 2; i++) {
        install(fakes[i][0]);
        check_level(" info ", fakes[i][1]);
        fclose(fopen(device, "w"));
        check_level(" warn ", fakes[i][1]);
        unlink(device);
    }
    fclose(fopen(device, "w"));
    install("same_version.so"); // finds no GPU
    check_level(" warn ", "");
    unlink(device);
    rmdir(devices);
    free(device);
}
END_TEST

START_TEST(auto_prefers_a_gpu_in_the_second_dtype_to_a_cpu_in_the_first)
{
    struct backend *b;
    enum dtype dtype = DTYPE_INT8;
    install("bf16_only.so");
    ck_assert_int_eq(backend_open_either("auto", &shape, DTYPE_BF16, 1, &dtype, &b), STATUS_OK);
    ck_assert_str_eq(b->ops->name, "cuda");
    ck_assert_int_eq(dtype, DTYPE_BF16);
    dtype = DTYPE_INT8;
    ck_assert_int_eq(backend_open_either("auto", &shape, DTYPE_INT8, 1, &dtype, &b), STATUS_OK);
    ck_assert_str_eq(b->ops->name, "cpu");
    ck_assert_int_eq(dtype, DTYPE_INT8);
    b->ops->close(b);
}
END_TEST

static void find_folder(void)
{
    ck_assert_int_gt(readlink("/proc/self/exe", folder, sizeof folder - 1), 0);
    *strrchr(folder, '/') = 0;
}

SUITE("cuda_module")
{
    log_setup("test", LOG_INFO);
    FIXTURE_ONCE(find_folder, NULL);
    TEST(a_module_of_another_build_is_refused_with_both_versions);
    TEST(a_module_without_a_version_is_refused);
    TEST(what_a_module_of_this_build_lacks_is_named);
    TEST(a_module_of_this_build_is_loaded);
    TEST(auto_warns_where_a_gpu_may_be);
    TEST(auto_prefers_a_gpu_in_the_second_dtype_to_a_cpu_in_the_first);
}
