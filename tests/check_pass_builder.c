// SPDX-License-Identifier: Apache-2.0
// worker/pass_builder: two passes that are built at the same time do not affect each other. A builder for half of the
// rows leaves the other half.
#include <stdlib.h>

#include "tests/suite.h"
#include "worker/pass_builder.h"

enum { VOCAB = 40, ROWS = 16, PROMPT = 6 };

static const struct model_config config = {
    .n_layers = 2, .hidden = 8, .intermediate = 16, .n_heads = 2, .n_kv_heads = 1, .head_size = 4, .vocab_size = VOCAB};
static const struct batch_limits limits = {.rows = ROWS, .seqs = 4, .seq_blocks = 2, .logit_rows = 8};

static struct sequence *sequence_of(uint64_t id, int first_token)
{
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = first_token + i;
    struct sequence_request request = {.id = id, .tokens = tokens, .n_tokens = PROMPT, .prompt_tokens = PROMPT};
    static const struct rope_config rope = {.dims = 2};
    const struct sequence_limits sequence_limits = {VOCAB, 100, 10, &rope};
    struct sequence *q;
    sampling_defaults(&request.sampling);
    request.sampling.max_tokens = 4;
    ck_assert_int_eq(sequence_create(&request, &sequence_limits, &q), STATUS_OK);
    q->n_blocks = 1;
    return q;
}

static void builder_begin(struct pass_builder *b, struct scheduled_pass *pass, struct pace *pace, uint64_t number)
{
    const struct pass_limits pass_limits = {
        .number = number, .rows = ROWS, .spare_logit_rows = 4, .config = &config, .pace = pace};
    pass_builder_begin(b, pass, &pass_limits);
    pace_budget_set_decodes(&b->budget, 0);
}

START_TEST(two_passes_are_built_at_the_same_time)
{
    struct sequence *q[] = {sequence_of(1, 0), sequence_of(2, 10), sequence_of(3, 20)};
    struct scheduled_pass passes[2];
    struct pass_builder builders[2];
    struct pace pace;
    pace_init(&pace, &config, PACE_UNLIMITED);
    for (int i = 0; i < 2; i++) {
        scheduled_pass_init(&passes[i], &limits);
        builder_begin(&builders[i], &passes[i], &pace, (uint64_t)i + 1);
    }
    pass_builder_add_rows(&builders[0], q[0], PROMPT, 0);
    pass_builder_add_rows(&builders[1], q[1], 4, 0);
    pass_builder_add_rows(&builders[0], q[2], 2, 0);
    const struct ragged_batch *first = pass_builder_finish(&builders[0]), *second = pass_builder_finish(&builders[1]);
    ck_assert_int_eq(first->n_seqs, 2);
    ck_assert_int_eq(first->n_rows, PROMPT + 2);
    ck_assert_int_eq(first->token[PROMPT], 20);
    ck_assert_int_eq(passes[0].n_host_rows, 1); // the backend samples nothing; one prompt is complete
    ck_assert_int_eq(passes[0].parts[0].host_rows, 1);
    ck_assert_int_eq(passes[0].parts[1].rows, 2);
    ck_assert_int_eq(second->n_seqs, 1);
    ck_assert_int_eq(second->n_rows, 4);
    ck_assert_int_eq(second->token[0], 10);
    ck_assert_int_eq(passes[1].n_host_rows, 0);
    for (int i = 0; i < 2; i++)
        scheduled_pass_fini(&passes[i]);
    for (int i = 0; i < 3; i++)
        sequence_free(q[i]);
}
END_TEST

START_TEST(half_of_a_builder_leaves_the_other_half)
{
    struct sequence *q[] = {sequence_of(1, 0), sequence_of(2, 10)};
    struct scheduled_pass pass;
    struct pass_builder b;
    struct pace pace;
    pace_init(&pace, &config, PACE_UNLIMITED);
    scheduled_pass_init(&pass, &limits);
    builder_begin(&b, &pass, &pace, 1);
    struct pass_builder half = pass_builder_half(&b);
    ck_assert_int_eq(pass_builder_rows_left(&half), ROWS / 2);
    pass_builder_add_rows(&half, q[0], PROMPT, 0);
    ck_assert_int_eq(pass_builder_rows_left(&half), ROWS / 2 - PROMPT);
    pass_builder_merge(&b, &half);
    ck_assert_int_eq(pass_builder_rows_left(&b), ROWS - PROMPT);
    ck_assert(pass_builder_contains(&b, q[0]));
    ck_assert(!pass_builder_contains(&b, q[1]));
    ck_assert_int_eq(pass_builder_finish(&b)->n_rows, PROMPT);
    scheduled_pass_fini(&pass);
    sequence_free(q[0]);
    sequence_free(q[1]);
}
END_TEST

SUITE("pass builder")
{
    TEST(two_passes_are_built_at_the_same_time);
    TEST(half_of_a_builder_leaves_the_other_half);
}
