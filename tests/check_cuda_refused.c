// SPDX-License-Identifier: Apache-2.0
// Devices and shapes that the CUDA backend refuses, with their messages, on emulated GPUs: none, too few, too old, too
// small, lost.
#include <stdio.h>

#include "tests/cuda_fixture.h"
#include "tests/suite.h"

static void emulate_one_gpu(void)
{
    emulator_set_devices(1);
    emulator_set_memory((size_t)1 << 30);
    emulator_set_capability(9, 0);
}

static void check_refused(const struct backend_shape *shape, enum dtype dtype, enum status status, const char *word)
{
    struct backend *b;
    ck_assert_int_eq(backend_open_cuda(shape, dtype, &b), status);
    ck_assert_msg(strstr(status_message(), word) != NULL, "%s", status_message());
}

START_TEST(unsupported_shapes_and_devices_are_refused)
{
    emulate_one_gpu();
    struct backend_shape shape = small_shape;
    check_refused(&shape, DTYPE_F32, STATUS_UNSUPPORTED, "bf16, fp8 or int4-g128");
    check_refused(&shape, DTYPE_INT8, STATUS_UNSUPPORTED, "bf16, fp8 or int4-g128");
    check_refused(&shape, DTYPE_BF12, STATUS_UNSUPPORTED,
                  "dtype bf12: the CUDA backend computes in bf16, fp8 or int4-g128");
    shape.kv_dtype = DTYPE_INT8;
    check_refused(&shape, DTYPE_BF16, STATUS_UNSUPPORTED, "bf16 or fp8");
    shape = small_shape;
    shape.head_size = 3;
    check_refused(&shape, DTYPE_BF16, STATUS_INVALID, "head size");
    shape.head_size = 20;
    check_refused(&shape, DTYPE_BF16, STATUS_UNSUPPORTED, "multiples of 8 up to 256");
    shape.head_size = 264;
    check_refused(&shape, DTYPE_BF16, STATUS_UNSUPPORTED, "head size 264");
    emulator_set_capability(7, 5);
    check_refused(&small_shape, DTYPE_BF16, STATUS_UNSUPPORTED, "7.5");
    emulator_set_capability(8, 0);
    check_refused(&small_shape, DTYPE_FP8, STATUS_UNSUPPORTED, "8.9");
    shape = small_shape;
    shape.gpu = (struct gpu_place){.device = GPU_NONE, .seen = 2, .used_by = 1};
    emulate_one_gpu();
    emulator_set_devices(2);
    check_refused(&shape, DTYPE_BF16, STATUS_INVALID,
                  "2 GPUs seen, all in use by lower ranks (the first by rank 1): each rank needs its own GPU");
    emulator_set_devices(0);
    check_refused(&small_shape, DTYPE_BF16, STATUS_NOT_FOUND, "no CUDA device");
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

START_TEST(a_device_that_is_too_small_is_refused)
{
    emulate_one_gpu();
    emulator_set_memory((size_t)4 << 20);
    check_refused(&small_shape, DTYPE_BF16, STATUS_EXHAUSTED, "MiB");
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

START_TEST(a_lost_device_is_reported_by_every_wait)
{
    emulate_one_gpu();
    struct backend *b;
    OK(backend_open_cuda(&small_shape, DTYPE_BF16, &b));
    struct tensor *t = make_tensor(b, TENSOR_F32, 1, 16);
    float host[16];
    OK(b->ops->read(b, t, 1, host));
    emulator_fail_after(1);
    ck_assert_int_eq(b->ops->read(b, t, 1, host), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), "CUDA") != NULL, "%s", status_message());
    b->ops->close(b);
    emulator_fail_after(0);
}
END_TEST

SUITE("cuda_refused")
{
    TEST(unsupported_shapes_and_devices_are_refused);
    TEST(a_device_that_is_too_small_is_refused);
    TEST(a_lost_device_is_reported_by_every_wait);
}
