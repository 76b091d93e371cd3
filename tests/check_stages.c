// SPDX-License-Identifier: Apache-2.0
// Pipeline stages: a model divided over stages gives the bits of the same model in one stage, each stage loads and
// keeps only its layers, and wrong divisions are refused.
#include "engine/model/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "tests/comm_threads.h"
#include "tests/model_fixture.h"
#include "tests/suite.h"

enum { LAYERS = 5, ROWS = 40 };

// ---- equal bits ----

static const struct division {
    int stages, tp;
    const char *layers;
} divisions[] = {{2, 1, NULL}, {2, 1, "1,4"}, {4, 1, NULL}, {5, 1, NULL}, {2, 2, NULL}, {2, 4, "4,1"}, {3, 2, "1,3,1"}};
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

static const struct variant {
    const char *family, *backend, *dtype, *kv_dtype;
    bool tied, dummy;
    enum tiny_fp8 fp8;
} variants[] = {
    {"llama3", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"llama", "reference", "f32", NULL, true, false, TINY_FP8_NONE},
    {"llama", "cpu", "bf16", "int8", true, false, TINY_FP8_NONE},
    {"qwen2", "cpu", "int8", NULL, false, false, TINY_FP8_NONE},
    {"qwen3", "cpu", "bf12", "int8", false, false, TINY_FP8_NONE},
    {"olmo2", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"olmo2", "reference", "bf16", NULL, true, false, TINY_FP8_NONE},
    {"granite", "cpu", "int8-g128", NULL, true, false, TINY_FP8_NONE},
    {"arcee", "cpu", "bf16", NULL, false, false, TINY_FP8_NONE},
    {"apertus", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"smollm3", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"longrope", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"ministral3", "cpu", "f32", NULL, false, false, TINY_FP8_NONE},
    {"llama", "reference", "fp8", "fp8", false, false, TINY_FP8_CHANNEL},
    {"llama", "cpu", "auto", NULL, false, false, TINY_FP8_BLOCK},
    {"llama", "reference", "auto", NULL, false, true, TINY_FP8_FBGEMM},
    {"llama", "cpu", "f32", NULL, true, true, TINY_FP8_NONE},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

// Makes pass `step`: packed prompts with gaps in the positions, a chunk with selected logits, decodes, draft rows, and
// passes that leave out layers.
static void make_batch(struct forward *f, int step, bool samples)
{
    static struct row_sampling draws[FORWARD_MAX_ROWS];
    int32_t token[ROWS], position[ROWS];
    for (int i = 0; i < ROWS; i++) {
        token[i] = (i * 37 + step * 11) % 256;
        position[i] = i + i / 5 * 3;
        draws[i] = (struct row_sampling){.uniform = 0.05, .top_p = 0.9, .inverse_temperature = (float)(i % 2)};
    }
    forward_start(f, 4);
    if (step == 0) {
        forward_add(f, 0, 0, token, NULL, ROWS, LOGITS_LAST);
        forward_add(f, 1, 0, token, position, 23, LOGITS_ALL);
        forward_add(f, 2, 0, token, position, 1, LOGITS_LAST);
        forward_add(f, 3, 0, token, NULL, 33, LOGITS_NONE);
    } else if (step == 1) {
        forward_add(f, 3, 33, token, NULL, 20, LOGITS_NONE); // no logits at all
    } else {
        const int32_t next[4] = {200 + step, 201 + step, 202 + step, 203 + step};
        forward_add(f, 0, ROWS, token + 1, next, 1, LOGITS_LAST);
        forward_add(f, 1, 23, token + 2, next, 4, LOGITS_ALL);
        forward_add(f, 3, 53, token + 4, next, 1, LOGITS_LAST);
        f->batch.skipped_layers = step - 2;
    }
    if (samples && f->batch.n_logit_rows) f->batch.sampling = draws;
}

enum { STEPS = LAYERS + 3 };

static void compare_passes(struct ranks *staged, struct ranks *whole, const char *what)
{
    struct forward *f = mem_alloc(sizeof *f);
    const size_t vocab = (size_t)model_get_config(whole->model[0])->vocab_size;
    for (int step = 0; step < STEPS; step++) {
        make_batch(f, step, model_samples(whole->model[0]));
        const struct forward_result want = ranks_forward(whole, &f->batch), got = ranks_forward(staged, &f->batch);
        const size_t rows = (size_t)f->batch.n_logit_rows;
        ck_assert_int_eq(!want.logits, !rows);
        ck_assert_int_eq(!got.logits, !rows);
        if (rows)
            ck_assert_msg(!memcmp(got.logits, want.logits, rows * vocab * sizeof(float)), "%s: pass %d: other bits",
                          what, step);
        if (want.tokens) ck_assert_mem_eq(got.tokens, want.tokens, rows * sizeof *want.tokens);
    }
    free(f);
}

static size_t kv_bytes_of_all(const struct ranks *r)
{
    size_t bytes = 0;
    for (int rank = 0; rank < r->size; rank++)
        bytes += model_kv_bytes(r->model[rank]);
    return bytes;
}

// Leaves the attention of the first two layers in 16 bits only.
static void quantise_later_layers(const char *dir)
{
    char from[] = "layers.0.self_attn.q_proj", to[] = "layers.0.self_****.q_proj";
    for (int i = 2 * 4; i < LAYERS * 4; i++) {
        from[7] = to[7] = (char)('0' + i / 4);
        from[19] = to[19] = "qkvo"[i % 4];
        edit_file(dir, "config.json", from, to);
    }
}

START_TEST(stages_change_no_bit)
{
    const struct variant *v = &variants[_i];
    struct tiny_model spec = tiny_model_spec(v->family);
    spec.n_layers = LAYERS;
    spec.tied = v->tied;
    spec.fp8 = v->fp8;
    if (v->fp8) spec.hidden = 128, spec.intermediate = 256;
    char *dir = tiny_model_temp(&spec);
    if (v->fp8 == TINY_FP8_FBGEMM) quantise_later_layers(dir);
    struct model_options options = options_for(dir, v->backend, v->dtype);
    options.kv_dtype = v->kv_dtype;
    options.dummy = v->dummy;
    for (int i = 0; i < DIVISIONS; i++) {
        const struct division *d = &divisions[i];
        struct ranks whole, staged;
        options.stages = 1;
        options.stage_layers = NULL;
        ranks_open(&whole, &options, d->tp);
        options.stages = d->stages;
        options.stage_layers = d->layers;
        ranks_open(&staged, &options, d->tp * d->stages);
        char *what = mem_format("%s %s on %s, tp %d, pp %d", v->family, v->dtype, v->backend, d->tp, d->stages);
        compare_passes(&staged, &whole, what);
        ck_assert_uint_eq(kv_bytes_of_all(&staged), kv_bytes_of_all(&whole));
        free(what);
        ranks_close(&staged);
        ranks_close(&whole);
    }
    tiny_model_remove(dir);
}
END_TEST

// ---- refusals ----

static const struct refusal {
    int stages, ranks;
    const char *layers, *message;
} refusals[] = {
    {2, 2, "1,3", "pp-layers 1,3: these are 4 layers, but the model has 5"},
    {2, 2, "1,4,0", "pp-layers 1,4,0: must be 2 numbers of layers of at least 1, separated by commas"},
    {2, 2, "5", "pp-layers 5: must be 2 numbers"},
    {2, 2, "0,5", "pp-layers 0,5: must be 2 numbers"},
    {2, 2, "-1,6", "pp-layers -1,6: must be 2 numbers"},
    {2, 2, "1, 4", "pp-layers 1, 4: must be 2 numbers"},
    {2, 2, "99999999999999999999,1", "must be 2 numbers"},
    {6, 6, NULL, "pp 6: the model has 5 layers, and every stage needs one"},
    {2, 3, NULL, "pp 2: 3 ranks cannot be divided into stages of equal size"},
    {2, 1, NULL, "pp 2: 1 ranks cannot be divided into stages of equal size"},
    {1, 1, "4", "pp-layers 4: these are 4 layers, but the model has 5"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

// A tensor has a wrong type, so that loading the weights would fail with another message.
START_TEST(wrong_divisions_are_refused_before_weights_are_read)
{
    const struct refusal *r = &refusals[_i];
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_layers = LAYERS;
    char *dir = tiny_model_temp(&spec);
    edit_text(dir, "model.norm.weight", "F32", "I32");
    struct model_options options = options_for(dir, "cpu", "f32");
    options.stages = r->stages;
    options.stage_layers = r->layers;
    struct ranks ranks;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, r->ranks), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), r->message) != NULL, "%s", status_message());
    tiny_model_remove(dir);
}
END_TEST

// ---- what a stage loads ----

START_TEST(a_stage_loads_only_its_own_tensors)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_layers = LAYERS;
    char *dir = tiny_model_temp(&spec);
    // Each of these tensors has a wrong shape or type, which only a stage that loads it reports. Rank 1 is the first
    // stage.
    static const struct {
        const char *tensor, *from, *to;
        int rank; // that loads it
    } broken[] = {{"model.embed_tokens.weight", "[272,64]", "[64,272]", 1},
                  {"model.layers.1.mlp.up_proj.weight", "F32", "I32", 1},
                  {"model.layers.2.mlp.up_proj.weight", "F32", "I32", 0},
                  {"model.norm.weight", "F32", "I32", 0},
                  {"lm_head.weight", "F32", "I32", 0}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char *copy = tiny_model_temp(&spec);
        edit_text(copy, broken[i].tensor, broken[i].from, broken[i].to);
        struct ranks ranks = {.size = 2};
        struct model_options options = options_for(copy, "cpu", "f32");
        options.stages = 2;
        options.stage_layers = "2,3";
        ck_assert_int_eq(comm_open_threads(2, ranks.comm), STATUS_OK);
        for (int rank = 0; rank < 2; rank++) {
            struct comm part = {.size = 1};
            ranks.comm[rank]->part = &part;
            struct model *model = NULL;
            enum status status = model_open(&options, ranks.comm[rank], &model);
            ck_assert_msg((status == STATUS_OK) == (rank != broken[i].rank), "%s, rank %d: %s", broken[i].tensor, rank,
                          status == STATUS_OK ? "opened" : status_message());
            if (status == STATUS_OK) model_close(model);
            ranks.comm[rank]->part = NULL;
        }
        for (int rank = 0; rank < 2; rank++)
            ranks.comm[rank]->ops->close(ranks.comm[rank]);
        tiny_model_remove(copy);
    }
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_tensor_that_no_stage_knows_is_refused)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_layers = LAYERS;
    char *dir = tiny_model_temp(&spec);
    edit_file(dir, "config.json", "\"num_hidden_layers\": 5", "\"num_hidden_layers\": 4");
    struct model_options options = options_for(dir, "cpu", "f32");
    options.stages = 2;
    struct ranks ranks;
    ck_assert_int_eq(ranks_try_open(&ranks, &options, 2), STATUS_DATA);
    ck_assert_ptr_nonnull(strstr(status_message(), "model.layers.4."));
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_plan_knows_the_layers_of_each_stage)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_layers = LAYERS;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "cpu", "bf16");
    struct memory_plan whole, part;
    ck_assert_int_eq(model_plan(&options, 0, 1, &whole), STATUS_OK);
    options.stages = 2;
    options.stage_layers = "4,1";
    size_t kv = 0;
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(model_plan(&options, rank, 2, &part), STATUS_OK);
        ck_assert_uint_eq(part.kv_block_bytes, whole.kv_block_bytes / LAYERS * (rank ? 4 : 1));
        kv += part.kv_block_bytes;
    }
    ck_assert_uint_eq(kv, whole.kv_block_bytes);
    ck_assert_int_eq(model_plan(&options, 0, 3, &part), STATUS_INVALID);
    ck_assert_int_eq(model_plan(&options, 0, 1, &part), STATUS_INVALID);
    tiny_model_remove(dir);
}
END_TEST

static struct ranks open_packed(const char *dir, int stages, const char *layers)
{
    struct model_options options = options_for(dir, "cpu", "bf16");
    struct ranks ranks;
    options.packed_cache = "auto";
    options.stages = stages;
    options.stage_layers = layers;
    ranks_open(&ranks, &options, stages);
    return ranks;
}

START_TEST(packed_weights_are_kept_for_each_division)
{
    static const char *const layers[] = {"2,3", "3,2", "2,3", "3,2"};
    struct tiny_model spec = tiny_model_spec("llama");
    spec.n_layers = LAYERS;
    char *dir = tiny_model_temp(&spec);
    struct ranks whole = open_packed(dir, 1, NULL);
    for (int i = 0; i < 4; i++) {
        struct ranks staged = open_packed(dir, 2, layers[i]);
        ck_assert_str_ne(model_packed_path(staged.model[0]), model_packed_path(staged.model[1]));
        ck_assert_str_ne(model_packed_path(staged.model[0]), model_packed_path(whole.model[0]));
        compare_passes(&staged, &whole, layers[i]);
        ranks_close(&staged);
    }
    ranks_close(&whole);
    tiny_model_remove(dir);
}
END_TEST

SUITE("stages")
{
    log_setup("test", LOG_ERROR);
    TIMEOUT(120);
    LOOP(stages_change_no_bit, 0, VARIANTS);
    LOOP(wrong_divisions_are_refused_before_weights_are_read, 0, REFUSALS);
    TEST(a_stage_loads_only_its_own_tensors);
    TEST(a_tensor_that_no_stage_knows_is_refused);
    TEST(a_plan_knows_the_layers_of_each_stage);
    TEST(packed_weights_are_kept_for_each_division);
}
