// SPDX-License-Identifier: Apache-2.0
// Tokens sampled by the backend, on one rank and with the vocabulary split over several ranks, against the sampler on
// the logits of the same pass. The argument names a backend that samples.
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_here.h"
#include "tests/forward.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "worker/sampler.h"

enum { ROWS = 40 };

static const char *backend;

static double real(uint32_t *state, double from, double to)
{
    *state = *state * 1664525u + 1013904223u;
    return from + (to - from) * (*state >> 8) * 0x1p-24;
}

// Every third row is greedy; the others have random parameters.
static struct sampling random_sampling(int row, uint32_t *state)
{
    struct sampling p;
    sampling_defaults(&p);
    p.max_tokens = 1000;
    p.seed = (uint64_t)row;
    if (row % 3 == 0) return p;
    p.temperature = real(state, 0.3, 2);
    if (row % 2) p.top_k = 1 + (int)real(state, 0, 60);
    if (row % 5) p.top_p = real(state, 0.1, 1);
    if (row % 7 == 0) p.min_p = real(state, 0, 0.5);
    return p;
}

// Numbers of ranks. A GPU takes one rank: NCCL refuses two on one GPU.
static const int sizes[] = {1, 2, 4};
#if defined FOREPACK_TEST_CUDA && !defined FOREPACK_CUDA_EMULATED
enum { N_SIZES = 1 };
#else
enum { N_SIZES = 3 };
#endif

// Compares a pass that returns tokens and logits, then a pass that returns tokens only.
static void compare(struct ranks *ranks, struct forward *f, const struct sampling *how, int vocab)
{
    static const int32_t output[ROWS];
    struct row_sampling sampling[ROWS];
    int32_t beside[ROWS];
    struct sampler *s = sampler_create(vocab);
    for (int r = 0; r < ROWS; r++)
        sampling[r] =
            sampler_row_sampling(&(struct sampler_context){.sampling = &how[r], .output = output, .n_output = r});
    f->batch.sampling = sampling;
    struct forward_result result = ranks_forward(ranks, &f->batch);
    ck_assert_ptr_nonnull(result.tokens);
    ck_assert_ptr_nonnull(result.logits);
    memcpy(beside, result.tokens, sizeof beside);
    for (int r = 0; r < ROWS; r++) {
        struct sampler_context context = {.sampling = &how[r], .output = output, .n_output = r};
        struct sampled_token token;
        ck_assert(sampler_backend_can_sample(&context));
        ck_assert_int_eq(sampler_sample_token(s, result.logits + (size_t)r * (size_t)vocab, &context, &token),
                         STATUS_OK);
        ck_assert_msg(token.token == beside[r], "row %d of %d ranks: the backend sampled %d, the sampler %d", r,
                      ranks->size, beside[r], token.token);
    }
    // Only the first logit rows return their logits, and all tokens stay the same.
    float *all = malloc(ROWS * (size_t)vocab * sizeof *all);
    memcpy(all, result.logits, ROWS * (size_t)vocab * sizeof *all);
    for (int read = 0; read < ROWS; read += ROWS / 2) {
        f->batch.n_unread_rows = ROWS - read;
        result = ranks_forward(ranks, &f->batch);
        ck_assert_int_eq(result.logits != NULL, read > 0);
        if (read) ck_assert_mem_eq(result.logits, all, (size_t)read * (size_t)vocab * sizeof *all);
        ck_assert_mem_eq(result.tokens, beside, sizeof beside);
    }
    free(all);
    f->batch.n_unread_rows = 0;
    f->batch.sampling = NULL;
    sampler_free(s);
}

static struct model_options options_for(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = backend,
                                  .dtype = "bf16",
                                  .threads = 1,
                                  .max_rows = ROWS,
                                  .max_seqs = 4,
                                  .max_logit_rows = ROWS,
                                  .n_kv_blocks = 4 * FORWARD_MAX_BLOCKS};
}

START_TEST(tokens_are_those_of_the_sampler)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 275; // no number of ranks divides it: the last slice is shorter
    char *dir = tiny_model_temp(&spec);
    const struct model_options options = options_for(dir);
    struct ranks ranks;
    ranks_open(&ranks, &options, sizes[_i]);
    ck_assert(model_samples(ranks.model[0]));
    struct forward *f = calloc(1, sizeof *f);
    forward_start(f, 1);
    int32_t tokens[ROWS];
    for (int r = 0; r < ROWS; r++)
        tokens[r] = r * 7 % spec.vocab_size;
    forward_add(f, 0, 0, tokens, NULL, ROWS, LOGITS_ALL);
    struct sampling how[ROWS];
    uint32_t state = 5;
    for (int r = 0; r < ROWS; r++)
        how[r] = random_sampling(r, &state);
    compare(&ranks, f, how, spec.vocab_size);
    for (int r = 0; r < ROWS; r++)
        how[r] = random_sampling(0, &state);
    compare(&ranks, f, how, spec.vocab_size);
    free(f);
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

// Memory per logit row of rank 0: its slice of the logits; with several ranks the slices of all, the sampled id of
// each, and the joined row on the host; on a device with its own memory, copies of the rows that are read.
START_TEST(the_memory_of_a_logit_row_is_counted_as_by_hand)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 275;
    char *dir = tiny_model_temp(&spec);
    const size_t shares[] = {275, 138, 69}, size = (size_t)sizes[_i], gathered = size * shares[_i];
    size_t floats = shares[_i] + 2, copied = 275 + 2;
    if (size > 1) floats += gathered + 2 * size + 275, copied = gathered + 2 * size;
    if (strcmp(backend, "cuda") == 0) floats += copied;
    const struct model_options options = options_for(dir);
    struct ranks ranks;
    ranks_open(&ranks, &options, sizes[_i]);
    ck_assert_uint_eq(model_logit_bytes(ranks.model[0]), floats * sizeof(float));
    if (size > 1) ck_assert_uint_eq(model_logit_bytes(ranks.model[1]), (shares[_i] + 2) * sizeof(float));
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_backend_that_cannot_sample_says_so)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    const struct model_options options = {
        .dir = dir, .backend = "cpu", .dtype = "f32", .threads = 1, .max_rows = 4, .max_seqs = 1};
    struct ranks ranks;
    struct forward *f = calloc(1, sizeof *f);
    ranks_open(&ranks, &options, 1);
    ck_assert(!model_samples(ranks.model[0]));
    forward_start(f, 1);
    forward_add(f, 0, 0, (int32_t[]){1, 2}, NULL, 2, LOGITS_LAST);
    f->batch.sampling = &(struct row_sampling){.top_p = 1};
    struct forward_result result;
    ck_assert_int_eq(ranks_try_forward(&ranks, &f->batch, &result), STATUS_INTERNAL);
    ck_assert_str_eq(status_message(), "ragged batch: backend cpu does not sample tokens");
    free(f);
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

SUITE("row_sampling")
{
    backend = argc > 1 ? argv[1] : "reference";
    SKIP_UNLESS(strcmp(backend, "cuda") != 0 || cuda_is_here());
    NO_FORK();
    LOOP(tokens_are_those_of_the_sampler, 0, N_SIZES);
    LOOP(the_memory_of_a_logit_row_is_counted_as_by_hand, 0, N_SIZES);
    TEST(a_backend_that_cannot_sample_says_so);
}
