// SPDX-License-Identifier: Apache-2.0
// The memory plan against what the CUDA backend allocates, byte for byte, for models and groups as large as any that
// are served. The emulated GPU counts memory without allocating it. Weights are zeros, so a model of 405 billion
// weights opens in milliseconds.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/llama.h"
#include "kernels/emulator/emulator.h"
#include "lib/base/mem.h"
#include "tests/suite.h"

enum { GIB_SHIFT = 30, KV_BLOCKS = 1000 };

struct example {
    const char *shape, *dtype, *kv_dtype;
    int size, max_rows;
};

static const struct example examples[] = {
    {"llama-3.1-8b", "bf16", "auto", 1, 2048},      {"llama-3.1-8b", "bf16", "auto", 1, 16384},
    {"llama-3.1-8b", "fp8", "fp8", 1, 16384},       {"llama-3.2-1b", "bf16", "auto", 1, 8192}, // tied
    {"llama-3.1-70b", "bf16", "auto", 8, 8192},     {"llama-3.1-70b", "fp8", "fp8", 8, 16384},
    {"llama-3.1-405b", "bf16", "auto", 8, 8192},    {"llama-3.1-405b", "bf16", "auto", 16, 16384},
    {"llama-3.1-405b", "fp8", "auto", 8, 8192},     {"llama-3.1-405b", "fp8", "fp8", 16, 8192},
    {"llama-3.1-405b-fp8", "auto", "fp8", 8, 8192}, {"llama-3.1-405b-fp8", "auto", "auto", 16, 16384},
};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

static char *shape_path(const struct example *e)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/bench/shapes/%s.json", source ? source : ".", e->shape);
}

static struct model_options options_of(const struct example *e, const char *path)
{
    return (struct model_options){.dir = path,
                                  .dummy = true,
                                  .zeros = true,
                                  .backend = "cuda",
                                  .dtype = e->dtype,
                                  .kv_dtype = e->kv_dtype,
                                  .max_rows = e->max_rows,
                                  .max_seqs = 128,
                                  .max_context = 32768,
                                  .n_kv_blocks = KV_BLOCKS};
}

static void check_rank(const struct example *e, const char *path, int rank, const char *allreduce_dtype)
{
    struct model_options options = options_of(e, path);
    options.allreduce_dtype = allreduce_dtype;
    struct comm comm = {.rank = rank, .size = e->size};
    struct memory_plan plan;
    struct model *m;
    ck_assert_msg(model_plan(&options, rank, e->size, &plan) == STATUS_OK, "%s", status_message());
    ck_assert_msg(model_open(&options, &comm, &m) == STATUS_OK, "%s", status_message());
    const struct device_memory *now = m->backend->ops->allocated(m->backend);
    for (int use = 0; use < MEMORY_USES; use++)
        ck_assert_msg(plan.allocated.bytes[use] == now->bytes[use],
                      "%s, rank %d of %d, %s: %s takes %zu bytes, the plan has %zu", e->shape, rank, e->size, e->dtype,
                      memory_use_name((enum memory_use)use), now->bytes[use], plan.allocated.bytes[use]);
    ck_assert_uint_eq(plan.allocated.rounding, now->rounding);
    ck_assert_uint_eq(device_memory_total(&plan.allocated), emulator_memory_used());
    ck_assert_int_eq(m->backend->ops->kv_create(m->backend, KV_BLOCKS), STATUS_OK);
    ck_assert_uint_eq(device_memory_total(&plan.allocated) + (KV_BLOCKS + 1) * plan.kv_block_bytes,
                      emulator_memory_used());
    model_close(m);
    ck_assert_uint_eq(emulator_memory_used(), 0);
}

START_TEST(the_plan_counts_every_byte)
{
    const struct example *e = &examples[_i];
    char *path = shape_path(e);
    emulator_set_memory((size_t)300 << GIB_SHIFT);
    emulator_count_only(true);
    check_rank(e, path, 0, "auto");
    if (e->size > 1) {
        check_rank(e, path, e->size - 1, "auto"); // without the logits of other ranks
        check_rank(e, path, 0, "f32");            // without partial sums
    }
    free(path);
}
END_TEST

// Nothing more is allocated by the first pass, by tuning, or with a KV cache that fills the rest.
START_TEST(passes_allocate_nothing_more)
{
    const struct example *e = &examples[_i ? 2 : 0];
    char *path = shape_path(e);
    struct model_options options = options_of(e, path);
    struct memory_plan plan;
    struct model *m;
    const double utilization = 0.9;
    const size_t gpu = (size_t)80 << GIB_SHIFT;
    emulator_set_memory(gpu);
    emulator_count_only(true);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    options.n_kv_blocks = 0;
    options.gpu_memory_utilization = utilization;
    ck_assert_int_eq(model_plan(&options, 0, 1, &plan), STATUS_OK);
    struct comm *comm;
    ck_assert_int_eq(comm_open_self(&comm), STATUS_OK);
    ck_assert_int_eq(model_open(&options, comm, &m), STATUS_OK);
    ck_assert_msg(model_join(m) == STATUS_OK, "%s", status_message());
    ck_assert_msg(model_warm_up(m) == STATUS_OK, "%s", status_message());
    const size_t planned = device_memory_total(&plan.allocated);
    ck_assert_uint_eq(planned + (size_t)(model_kv_blocks(m) + 1) * plan.kv_block_bytes, emulator_memory_used());
    ck_assert_uint_le(emulator_memory_used(), (size_t)(utilization * (double)gpu));
    ck_assert_uint_gt(emulator_memory_used() + plan.kv_block_bytes, (size_t)(utilization * (double)gpu));
    model_close(m);
    comm->ops->close(comm);
    free(path);
}
END_TEST

// `forepack up` starts nodes in this way if they share a GPU.
START_TEST(another_process_that_starts_takes_nothing_of_the_share)
{
    const struct example *e = &examples[0];
    char *path = shape_path(e);
    struct model_options options = options_of(e, path);
    struct memory_plan plan;
    struct model *m;
    void *of_another;
    const double utilization = 0.45;
    const size_t gpu = (size_t)80 << GIB_SHIFT;
    emulator_set_memory(gpu);
    emulator_count_only(true);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    options.n_kv_blocks = 0;
    options.gpu_memory_utilization = utilization;
    ck_assert_int_eq(model_plan(&options, 0, 1, &plan), STATUS_OK);
    struct comm *comm;
    ck_assert_int_eq(comm_open_self(&comm), STATUS_OK);
    ck_assert_int_eq(model_open(&options, comm, &m), STATUS_OK);
    ck_assert_int_eq(cudaMalloc(&of_another, (size_t)(utilization * (double)gpu)), cudaSuccess);
    ck_assert_msg(model_join(m) == STATUS_OK, "%s", status_message());
    ck_assert_msg(model_warm_up(m) == STATUS_OK, "%s", status_message());
    const size_t used = device_memory_total(&plan.allocated) + (size_t)model_kv_blocks(m) * plan.kv_block_bytes;
    ck_assert_uint_gt(used + ((size_t)1 << GIB_SHIFT), (size_t)(utilization * (double)gpu));
    ck_assert_uint_lt(used, (size_t)(utilization * (double)gpu));
    cudaFree(of_another);
    model_close(m);
    comm->ops->close(comm);
    free(path);
}
END_TEST

SUITE("cuda_memory")
{
    LOOP(the_plan_counts_every_byte, 0, EXAMPLES);
    LOOP(passes_allocate_nothing_more, 0, 2);
    TEST(another_process_that_starts_takes_nothing_of_the_share);
}
