// SPDX-License-Identifier: Apache-2.0
// forepack-bench-onednn: gemms of oneDNN in its own packed weight format, for comparison. `forepack bench kernels`
// starts this program and writes a number of rows M per line. The program answers each line with the seconds that the
// gemms of one layer took. No other program of Forepack links oneDNN.
//
//     forepack-bench-onednn bf16|f32|int8 THREADS COPIES NxK...
//
// C [M, N] in f32 (int8: s32) = A [M, K] times the transposed W [N, K]; bf16 x bf16, f32 x f32 or u8 x s8. Runs cycle
// through COPIES copies of the weights, so that weights are read from memory.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        dnnl_status_t check_status = (call);                                                                           \
        if (check_status != dnnl_success) {                                                                            \
            fprintf(stderr, "forepack-bench-onednn: %s: status %d\n", #call, (int)check_status);                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { GEMMS_MAX = 16, COPIES_MAX = 64 };

struct gemm {
    int n, k;
    dnnl_memory_t plain;              // [K, N], the source of the packed copies
    dnnl_memory_t packed[COPIES_MAX]; // in the format that the primitive asked for
    dnnl_memory_t x, out;
    dnnl_primitive_t primitive; // for the current M
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_data_type_t x_type, w_type, out_type;
static int n_gemms, copies;
static struct gemm gemms[GEMMS_MAX];

static dnnl_memory_t memory_create(const dnnl_memory_desc_t *desc)
{
    dnnl_memory_t memory;
    CHECK(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    return memory;
}

static dnnl_memory_desc_t matrix_desc(int rows, int columns, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc;
    dnnl_dims_t dims = {rows, columns};
    CHECK(dnnl_memory_desc_init_by_tag(&desc, 2, dims, type, tag));
    return desc;
}

// Fills memory with 2^-7 for floating types, 1 for bytes.
static void memory_fill(dnnl_memory_t memory, const dnnl_memory_desc_t *desc)
{
    void *data;
    CHECK(dnnl_memory_get_data_handle(memory, &data));
    size_t bytes = dnnl_memory_desc_get_size(desc);
    if (desc->data_type == dnnl_f32)
        for (size_t i = 0; i < bytes / 4; i++)
            ((float *)data)[i] = 0x1p-7f;
    else if (desc->data_type == dnnl_bf16)
        for (size_t i = 0; i < bytes / 2; i++)
            ((unsigned short *)data)[i] = 0x3c00;
    else
        memset(data, 1, bytes);
}

// Packs all copies again if the primitive for this M needs another format than the last M.
static void gemm_pack(struct gemm *p, const dnnl_memory_desc_t *wanted)
{
    const dnnl_memory_desc_t *have;
    if (p->packed[0]) {
        CHECK(dnnl_memory_get_memory_desc(p->packed[0], &have));
        if (dnnl_memory_desc_equal(have, wanted)) return;
    }
    for (int c = 0; c < copies; c++) {
        if (p->packed[c]) dnnl_memory_destroy(p->packed[c]);
        p->packed[c] = memory_create(wanted);
    }
    const dnnl_memory_desc_t *plain;
    CHECK(dnnl_memory_get_memory_desc(p->plain, &plain));
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t reorder;
    CHECK(dnnl_reorder_primitive_desc_create(&desc, plain, engine, wanted, engine, NULL));
    CHECK(dnnl_primitive_create(&reorder, desc));
    for (int c = 0; c < copies; c++) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->plain}, {DNNL_ARG_TO, p->packed[c]}};
        CHECK(dnnl_primitive_execute(reorder, stream, 2, args));
        CHECK(dnnl_stream_wait(stream));
    }
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
}

static void gemm_prepare(struct gemm *p, int m)
{
    dnnl_memory_desc_t x = matrix_desc(m, p->k, x_type, dnnl_ab), out = matrix_desc(m, p->n, out_type, dnnl_ab);
    dnnl_memory_desc_t w = matrix_desc(p->k, p->n, w_type, dnnl_format_tag_any);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc;
    CHECK(dnnl_matmul_desc_init(&matmul, &x, &w, NULL, &out));
    CHECK(dnnl_primitive_desc_create(&desc, &matmul, NULL, engine, NULL));
    if (p->primitive) {
        dnnl_primitive_destroy(p->primitive);
        dnnl_memory_destroy(p->x);
        dnnl_memory_destroy(p->out);
    }
    CHECK(dnnl_primitive_create(&p->primitive, desc));
    gemm_pack(p, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    p->x = memory_create(&x);
    p->out = memory_create(&out);
    memory_fill(p->x, &x);
    memory_fill(p->out, &out);
    dnnl_primitive_desc_destroy(desc);
}

static double layer_run(int copy)
{
    int64_t from_us = clock_now_us();
    for (int i = 0; i < n_gemms; i++) {
        struct gemm *p = &gemms[i];
        dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->packed[copy]}, {DNNL_ARG_DST, p->out}};
        CHECK(dnnl_primitive_execute(p->primitive, stream, 3, args));
    }
    CHECK(dnnl_stream_wait(stream));
    return (double)(clock_now_us() - from_us) / 1e6;
}

static void fail_usage(void)
{
    fprintf(stderr, "usage: forepack-bench-onednn bf16|f32|int8 THREADS COPIES NxK...\n");
    exit(2);
}

static void set_types(const char *name)
{
    if (strcmp(name, "bf16") == 0) {
        x_type = w_type = dnnl_bf16;
        out_type = dnnl_f32;
    } else if (strcmp(name, "f32") == 0) {
        x_type = w_type = out_type = dnnl_f32;
    } else if (strcmp(name, "int8") == 0) {
        x_type = dnnl_u8;
        w_type = dnnl_s8;
        out_type = dnnl_s32;
    } else {
        fail_usage();
    }
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc - 4 > GEMMS_MAX) fail_usage();
    set_types(argv[1]);
    int threads = atoi(argv[2]);
    copies = atoi(argv[3]);
    if (threads < 1 || copies < 1 || copies > COPIES_MAX) fail_usage();
    omp_set_num_threads(threads);
    CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    for (int i = 4; i < argc; i++) {
        struct gemm *p = &gemms[n_gemms++];
        if (sscanf(argv[i], "%dx%d", &p->n, &p->k) != 2 || p->n < 1 || p->k < 1) fail_usage();
        dnnl_memory_desc_t desc = matrix_desc(p->k, p->n, w_type, dnnl_ab);
        p->plain = memory_create(&desc);
        memory_fill(p->plain, &desc);
    }
    int m, last = 0, copy = 0;
    while (scanf("%d", &m) == 1 && m > 0) {
        for (int i = 0; i < n_gemms && m != last; i++)
            gemm_prepare(&gemms[i], m);
        last = m;
        printf("%.9f\n", layer_run(copy));
        fflush(stdout);
        copy = (copy + 1) % copies;
    }
    return 0; // process exit frees oneDNN's memory
}
