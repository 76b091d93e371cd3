// SPDX-License-Identifier: Apache-2.0
// FP8 checkpoints with a scale for each block of 128 x 128: logits against slow_llama on every number of ranks, also if
// slices begin and end within blocks, and broken scales.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_here.h"
#include "tests/forward.h"
#include "tests/model_fixture.h"
#include "tests/slow_llama.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

#define GATE "model.layers.0.mlp.gate_proj.weight"

static struct forward f;

// Only the dimensions of Q and of K and V are multiples of 128, on one rank or more.
static struct tiny_model spec_of(void)
{
    struct tiny_model spec = tiny_model_spec("qwen3");
    spec.n_layers = 1;
    spec.hidden = 192;
    spec.intermediate = 320;
    spec.head_size = 32;
    spec.fp8 = TINY_FP8_BLOCK;
    spec.dtype = DTYPE_BF16;
    return spec;
}

enum { N = 12 };

// A prompt and its logits from slow_llama.
struct expected {
    char *dir;
    int32_t token[N], position[N];
    double *logits;
    size_t count;
};

static struct expected expected_make(void)
{
    const struct tiny_model spec = spec_of();
    struct expected e = {.dir = tiny_model_temp(&spec), .count = N * (size_t)spec.vocab_size};
    struct slow_llama *slow = slow_llama_create(&spec);
    e.logits = mem_alloc_array(e.count, sizeof *e.logits);
    for (int i = 0; i < N; i++)
        e.token[i] = (i * 37 + 11) % spec.vocab_size, e.position[i] = i + i / 3;
    slow_llama_run(slow, e.token, e.position, N, e.logits, NULL);
    slow_llama_free(slow);
    return e;
}

static void expected_free(struct expected *e)
{
    free(e->logits);
    tiny_model_remove(e->dir);
}

static const float *logits_of(struct ranks *ranks, const struct expected *e)
{
    forward_start(&f, 1);
    forward_add(&f, 0, 0, e->token, e->position, N, LOGITS_ALL);
    return ranks_forward(ranks, &f.batch).logits;
}

START_TEST(logits_equal_the_slow_implementation)
{
    static const char *const backends[] = {"reference", "cpu"};
    static const int sizes[] = {1, 2, 4};
    struct expected e = expected_make();
    struct ranks ranks;
    struct model_options options = options_for(e.dir, backends[_i % 2], "f32");
    ranks_open(&ranks, &options, sizes[_i / 2]);
    const float *logits = logits_of(&ranks, &e);
    for (size_t i = 0; i < e.count; i++)
        ck_assert_msg(fabs((double)logits[i] - e.logits[i]) <= 2e-4, "%s, %d ranks: logit %zu is %g, expected %g",
                      backends[_i % 2], ranks.size, i, (double)logits[i], e.logits[i]);
    ranks_close(&ranks);
    expected_free(&e);
}
END_TEST

// Rows are rounded to 4 bits of mantissa before every gemm in FP8 (see check_model_forward). Logits are up to 12.
START_TEST(the_cuda_backend_computes_in_fp8)
{
    if (!cuda_is_here()) return;
    struct expected e = expected_make();
    struct ranks ranks;
    struct model_options options = options_for(e.dir, "cuda", "auto");
    ranks_open(&ranks, &options, 1);
    const float *logits = logits_of(&ranks, &e);
    double squares = 0;
    for (size_t i = 0; i < e.count; i++)
        squares += ((double)logits[i] - e.logits[i]) * ((double)logits[i] - e.logits[i]);
    const double rms = sqrt(squares / (double)e.count);
    printf("fp8 blocks in %s: rms_logit_error=%.3f\n", dtype_name(model_dtype(ranks.model[0])), rms);
    ck_assert_double_le(rms, 0.85);
    ranks_close(&ranks);
    expected_free(&e);
}
END_TEST

static void refuse(const char *dir, const char *sentence)
{
    struct model *m;
    struct comm *comm;
    struct model_options options = options_for(dir, "cpu", "bf16");
    ck_assert_int_eq(comm_open_self(&comm), STATUS_OK);
    ck_assert_int_eq(model_open(&options, comm, &m), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "\"%s\" is not in \"%s\"", sentence, status_message());
    comm->ops->close(comm);
}

START_TEST(broken_scales_are_refused)
{
    const struct tiny_model spec = spec_of(); // the gate has 320 rows and 192 columns: 3 x 2 blocks
    char *dir = tiny_model_temp(&spec);
    edit_text(dir, GATE "_scale_inv", "[3,2]", "[2,3]");
    refuse(dir, "tensor " GATE "_scale_inv has shape [2, 3]: must be [3, 2], one scale for each block");
    edit_text(dir, GATE "_scale_inv", "[2,3]", "[6]  ");
    refuse(dir, "has shape [6]: must be [3, 2], one scale for each block");
    edit_text(dir, GATE "_scale_inv", "[6]  ", "[3,2]");
    edit_f32(dir, GATE "_scale_inv", 5, NAN);
    refuse(dir, "tensor " GATE "_scale_inv: scale 5 is nan: must be a positive number");
    edit_f32(dir, GATE "_scale_inv", 5, 0);
    refuse(dir, "scale 5 is 0: must be a positive number");
    edit_text(dir, GATE "_scale_inv", "gate_proj.weight_scale_inv", "gate_proj.weight_scale_Inv");
    refuse(dir, "tensor " GATE " is F8_E4M3, but there is no tensor " GATE "_scale_inv");
    tiny_model_remove(dir);
}
END_TEST

SUITE("fp8_blocks")
{
    TIMEOUT(60);
    LOOP(logits_equal_the_slow_implementation, 0, 6);
    TEST(the_cuda_backend_computes_in_fp8);
    TEST(broken_scales_are_refused);
}
