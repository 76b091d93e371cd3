// SPDX-License-Identifier: Apache-2.0
// Sequences that the scheduler refuses, each with a sentence.
#include <stdlib.h>
#include <string.h>

#include "tests/scheduler_world.h"
#include "tests/suite.h"

static void refuse(struct world *w, const struct sequence_request *ask, enum status expected, const char *sentence)
{
    ck_assert_int_eq(scheduler_add(w->scheduler, ask), expected);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "'%s' should say '%s'", status_message(), sentence);
}

START_TEST(bad_sequences_are_refused_with_a_sentence)
{
    struct world *w = world_open("llama", 9);
    world_start(w, 64, 4, 6);
    static const int32_t tokens[200];
    int32_t wrong[4] = {1, 2, 272, 3};
    struct token_range kept[2] = {{0, 1}, {5, 6}};
    struct sequence_request good = {
        .id = 1, .tokens = tokens, .n_tokens = 4, .kept = kept, .n_kept_ranges = 2, .prompt_tokens = 8};
    sampling_defaults(&good.sampling);
    good.sampling.max_tokens = 4;
    struct sequence_request bad = good;

    bad.tokens = wrong;
    refuse(w, &bad, STATUS_INVALID, "token 272 is outside the vocabulary of 272");
    wrong[2] = -1;
    refuse(w, &bad, STATUS_INVALID, "token 4294967295 is outside");
    bad = good;
    bad.penalty_ids = wrong;
    bad.n_penalty_ids = 4;
    refuse(w, &bad, STATUS_INVALID, "penalty_ids");
    bad = good;
    bad.n_tokens = 0;
    refuse(w, &bad, STATUS_INVALID, "at least one prompt token");
    bad = good;
    bad.n_generated = 4;
    refuse(w, &bad, STATUS_INVALID, "at least one prompt token");
    bad = good;
    bad.n_tokens = 5;
    refuse(w, &bad, STATUS_INVALID, "5 prompt tokens were sent for 4 kept tokens");
    bad = good;
    bad.prompt_tokens = 3;
    refuse(w, &bad, STATUS_INVALID, "4 prompt tokens kept out of 3");
    bad.prompt_tokens = 6;
    refuse(w, &bad, STATUS_INVALID, "kept range 5..6");
    bad = good;
    kept[1] = (struct token_range){1, 2};
    refuse(w, &bad, STATUS_INVALID, "kept range 1..2: ranges must not overlap");
    kept[1] = (struct token_range){6, 5};
    refuse(w, &bad, STATUS_INVALID, "kept range 6..5");
    kept[1] = (struct token_range){5, 6};
    kept[0] = (struct token_range){-1, 0};
    refuse(w, &bad, STATUS_INVALID, "kept range 4294967295..0");
    kept[0] = (struct token_range){0, 1};
    bad.sampling.temperature = NAN;
    refuse(w, &bad, STATUS_INVALID, "temperature");
    bad = good;
    bad.sampling.max_tokens = 0;
    refuse(w, &bad, STATUS_INVALID, "max_tokens 0");
    bad = good;
    bad.n_tokens = 4;
    bad.n_generated = 2;
    bad.n_kept_ranges = 1;
    bad.sampling.max_tokens = 2;
    refuse(w, &bad, STATUS_INVALID, "nothing is left to generate");
    bad = good;
    bad.sampling.max_tokens = CONTEXT;
    refuse(w, &bad, STATUS_OUT_OF_RANGE, "exceed the context of 192");
    bad.sampling.max_tokens = 1;
    bad.sampling.no_output = true;
    bad.prompt_tokens = CONTEXT + 1;
    refuse(w, &bad, STATUS_OUT_OF_RANGE, "prompt (193 tokens) and max_tokens (0) exceed the context of 192");
    bad.id = 3;
    bad.prompt_tokens = CONTEXT;
    world_add(w, &bad); // just fits
    bad = good;
    bad.n_kept_ranges = 0;
    bad.n_tokens = bad.prompt_tokens = 94;
    refuse(w, &bad, STATUS_OUT_OF_RANGE, "the sequence needs 97 KV entries, the whole KV cache has 96");
    bad.n_tokens = bad.prompt_tokens = 93;
    world_add(w, &bad); // just fits
    refuse(w, &bad, STATUS_INVALID, "request 0000000000000001 is already at this group");
    good.id = 2;
    world_add(w, &good);
    world_run(w);
    ck_assert_int_gt(w->now[1].n, 0);
    ck_assert_int_gt(w->now[2].n, 0);
    ck_assert_int_eq(w->now[3].n, 1);
    scheduler_free(w->scheduler);

    struct scheduler_limits limits = {.token_budget = 8, .max_seqs = 9, .context_tokens = CONTEXT, .kv_blocks = 6};
    ck_assert_int_eq(scheduler_create(w->engine, &limits, world_take_report, w, &w->scheduler), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "max-num-seqs 9: must be 1 to max-num-batched-tokens (8)"));
    world_close(w);
}
END_TEST

SUITE("scheduler")
{
    TIMEOUT(60);
    TEST(bad_sequences_are_refused_with_a_sentence);
}
