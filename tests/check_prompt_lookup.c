// SPDX-License-Identifier: Apache-2.0
// worker/prompt_lookup finds the same place as a search over all places: the one with the most equal tokens before it,
// and the latest of equal places. A draft has at most as many tokens as are equal, and none that the sequence cannot
// generate. It repeats itself if the sequence repeats.
#include <string.h>

#include "lib/base/random.h"
#include "tests/suite.h"
#include "worker/sequence.h"

enum { TOKENS = 300, VOCAB = 40 };

static const struct model_config config = {.vocab_size = VOCAB, .eos_id = {2}, .n_eos = 1};

static int past(const int32_t *tokens, int a, int b)
{
    int n = 0;
    while (n < a && n < LOOKUP_MATCH_MAX && tokens[a - n - 1] == tokens[b - n - 1])
        n++;
    return n;
}

START_TEST(the_longest_match_is_found)
{
    struct random_source random = random_stream(1, (uint64_t)_i);
    int32_t tokens[TOKENS];
    struct prompt_lookup lookup;
    int found = 0;
    prompt_lookup_init(&lookup, TOKENS);
    for (int n = 0; n < TOKENS; n++) {
        int best = 0, longest = LOOKUP_MATCH_MIN - 1, match = -1;
        for (int place = n - 1; place >= LOOKUP_MATCH_MIN; place--) {
            if (past(tokens, place, n) <= longest) continue;
            longest = past(tokens, place, n);
            best = place;
        }
        if (n % 3 != 1) { // some lengths are skipped
            ck_assert_int_eq(prompt_lookup_find(&lookup, tokens, n, &match), best);
            if (best) ck_assert_int_eq(match, longest);
            found += best > 0;
        }
        // Often a token that followed the same token before.
        tokens[n] = n && random_below(&random, 3) ? (tokens[n - 1] * 7 + random_below(&random, 2)) % VOCAB
                                                  : random_below(&random, VOCAB);
    }
    ck_assert_int_gt(found, 20);
    prompt_lookup_fini(&lookup);
}
END_TEST

static struct sequence *sequence_of(const int32_t *tokens, int n, int max_tokens, bool prompt_lookup)
{
    struct sequence_request request = {.id = 1,
                                       .tokens = tokens,
                                       .n_tokens = n,
                                       .prompt_tokens = n,
                                       .logprobs_from = 1,
                                       .prompt_lookup = prompt_lookup};
    static const struct rope_config rope = {.dims = 2};
    const struct sequence_limits limits = {VOCAB, 1000, 100, &rope};
    struct sequence *sequence;
    sampling_defaults(&request.sampling);
    request.sampling.max_tokens = max_tokens;
    ck_assert_int_eq(sequence_create(&request, &limits, &sequence), STATUS_OK);
    return sequence;
}

static void ck_looked_up(const int32_t *prompt, int n, int max_tokens, const int32_t *expected, int n_expected)
{
    struct sequence *s = sequence_of(prompt, n, max_tokens, true);
    ck_assert(sequence_lookup_draft(s, &config));
    ck_assert(s->draft_from_lookup);
    ck_assert_int_eq(s->n_draft, n_expected);
    ck_assert_mem_eq(s->tokens + n, expected, (size_t)n_expected * sizeof *expected);
    sequence_free(s);
}

START_TEST(a_draft_is_as_long_as_the_match)
{
    static const int32_t three[] = {9, 5, 6, 7, 11, 12, 13, 14, 8, 5, 6, 7}, follow[] = {11, 12, 13};
    static const int32_t stops[] = {5, 6, 7, 11, 2, 13, 5, 6, 7}, loop[] = {5, 6, 5, 6, 5, 6, 5, 6};
    static const int32_t repeats[] = {5, 6, 5, 6, 5, 6, 5, 6};
    ck_looked_up(three, 12, 20, follow, 3);
    ck_looked_up(three, 12, 3, follow, 2); // the token after the draft is the last one
    ck_looked_up(stops, 9, 20, follow, 1);
    ck_looked_up(loop, 8, 20, repeats, 6); // the draft repeats itself
}
END_TEST

START_TEST(without_a_match_the_draft_stays)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 6, 7}, draft[] = {20, 21};
    struct sequence *s = sequence_of(tokens, 6, 20, true), *off = sequence_of(tokens, 3, 20, false);
    ck_assert_int_eq(sequence_set_draft(s, 0, draft, 2, &config), STATUS_OK);
    ck_assert(!sequence_lookup_draft(s, &config));
    ck_assert(!s->draft_from_lookup);
    ck_assert(s->n_draft == 2);
    ck_assert(!sequence_lookup_draft(off, &config));
    sequence_free(s);
    sequence_free(off);
}
END_TEST

// A late draft has no token left, or belongs to another answer.
START_TEST(a_late_draft_does_not_end_the_present_one)
{
    static const int32_t tokens[] = {5, 6, 7}, draft[] = {20, 21, 22}, late[] = {20}, other[] = {25, 26, 27};
    struct sequence *s = sequence_of(tokens, 3, 20, false);
    s->tokens[s->n_tokens++] = 20;
    ck_assert_int_eq(sequence_set_draft(s, 0, draft, 3, &config), STATUS_OK);
    ck_assert_int_eq(s->n_draft, 2);
    ck_assert_int_eq(sequence_set_draft(s, 0, late, 1, &config), STATUS_OK);
    ck_assert_int_eq(sequence_set_draft(s, 0, other, 3, &config), STATUS_OK);
    ck_assert_int_eq(s->n_draft, 2);
    ck_assert_int_eq(s->tokens[s->n_tokens], 21);
    sequence_free(s);
}
END_TEST

SUITE("prompt lookup")
{
    LOOP(the_longest_match_is_found, 0, 20);
    TEST(a_draft_is_as_long_as_the_match);
    TEST(without_a_match_the_draft_stays);
    TEST(a_late_draft_does_not_end_the_present_one);
}
