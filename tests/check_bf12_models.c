// SPDX-License-Identifier: Apache-2.0
// bf12 on trained weights: the demo pair computes the same logits and importance as in bf16, at every level of the
// machine, in prefill and in decode, and its exponents compress.
#include <stdio.h>
#include <stdlib.h>

#include "engine/model/safetensors.h"
#include "kernels/bf12.h"
#include "kernels/convert.h"
#include "kernels/cpu/isa.h"
#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/suite.h"

enum { PROMPT = 70, KEYS = PROMPT };
static const char *const models[] = {"main", "speculator"};

static char *model_dir(int i)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/deploy/demo-model/%s", source ? source : ".", models[i]);
}

struct outputs {
    float *logits, *importance, *next; // of the last token of a prompt, and of one more token
    size_t n, n_next;
};

static struct outputs run(const char *dir, const char *dtype)
{
    static struct forward f;
    struct model_options options = {.dir = dir,
                                    .backend = "cpu",
                                    .dtype = dtype,
                                    .threads = 2,
                                    .max_rows = PROMPT,
                                    .max_seqs = 1,
                                    .n_kv_blocks = FORWARD_MAX_BLOCKS};
    struct ranks ranks;
    struct outputs to;
    int32_t token[PROMPT];
    ranks_open(&ranks, &options, 1);
    const int vocab = model_get_config(ranks.model[0])->vocab_size;
    for (int i = 0; i < PROMPT; i++)
        token[i] = (i * 7 + 3) % vocab;
    forward_start(&f, 1);
    forward_add(&f, 0, 0, token, NULL, PROMPT, LOGITS_LAST);
    forward_add_importance(&f, KEYS, 3);
    struct forward_result result = ranks_forward(&ranks, &f.batch);
    to.n = (size_t)vocab * sizeof(float);
    to.logits = mem_copy(result.logits, to.n);
    to.importance = mem_copy(result.importance, KEYS * sizeof(float));
    forward_start(&f, 1);
    forward_add(&f, 0, PROMPT, token, NULL, 1, LOGITS_ALL);
    result = ranks_forward(&ranks, &f.batch);
    to.n_next = (size_t)vocab * sizeof(float);
    to.next = mem_copy(result.logits, to.n_next);
    ranks_close(&ranks);
    return to;
}

static void outputs_free(struct outputs *o)
{
    free(o->logits);
    free(o->importance);
    free(o->next);
}

START_TEST(the_demo_pair_computes_the_bits_of_bf16)
{
    char *dir = model_dir(_i);
    for (int level = 0; level < CPU_ISA_COUNT; level++) {
        const struct cpu_isa *isa = cpu_isa_at((enum cpu_isa_level)level);
        if (!isa) continue;
        cpu_isa_prefer(isa);
        struct outputs bf16 = run(dir, "bf16"), bf12 = run(dir, "bf12");
        ck_assert_mem_eq(bf12.logits, bf16.logits, bf16.n);
        ck_assert_mem_eq(bf12.importance, bf16.importance, KEYS * sizeof(float));
        ck_assert_mem_eq(bf12.next, bf16.next, bf16.n_next);
        outputs_free(&bf16);
        outputs_free(&bf12);
    }
    free(dir);
}
END_TEST

// Counts over whole matrices, which is coarser than the tables of panels.
START_TEST(exponents_of_the_demo_pair_compress)
{
    char *dir = model_dir(_i);
    struct safetensors *st;
    ck_assert_int_eq(safetensors_open(dir, &st), STATUS_OK);
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        uint32_t count[256] = {0};
        uint8_t exponent[BF12_EXPONENTS];
        if (t->n_dims != 2) continue;
        ck_assert_str_eq(t->dtype, "BF16");
        for (size_t k = 0; k < t->size_bytes / 2; k++) {
            uint16_t half;
            memcpy(&half, (const char *)t->data + 2 * k, 2);
            count[half >> 7 & 0xff]++;
        }
        const uint64_t escapes = bf12_choose(count, exponent);
        ck_assert_msg(escapes * 2 * BF12_ESCAPES_IN < t->size_bytes, "%s: %llu escapes in %zu weights", t->name,
                      (unsigned long long)escapes, t->size_bytes / 2);
    }
    safetensors_close(st);
    free(dir);
}
END_TEST

SUITE("bf12_models")
{
    TIMEOUT(120);
    EACH(the_demo_pair_computes_the_bits_of_bf16, models);
    EACH(exponents_of_the_demo_pair_compress, models);
}
