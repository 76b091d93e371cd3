// SPDX-License-Identifier: Apache-2.0
// router/pack: the fast packing against a literal implementation of the rule, on random and real lengths.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/pack_exact.h"
#include "bench/pack_offline.h"
#include "bench/prompts.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "tests/suite.h"
#include "tests/test_data.h"

enum { ITEMS_MAX = 2000 };

static uint64_t random_state = 1;
static uint32_t random_next(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33);
}

// The rule of the paper's reference, in O(n^2): take the longest remaining item, of equal items the earlier one, and
// examine every bin.
static int pack_literally(const int32_t *length, int n, int32_t capacity, enum pack_rule rule, int32_t *bin_of)
{
    static int32_t room[ITEMS_MAX];
    static bool taken[ITEMS_MAX];
    memset(taken, 0, sizeof taken);
    int n_bins = 0;
    for (int round = 0; round < n; round++) {
        int item = -1, bin = -1;
        for (int i = 0; i < n; i++) {
            if (!taken[i] && (item < 0 || length[i] > length[item])) item = i;
        }
        taken[item] = true;
        for (int b = 0; b < n_bins; b++) {
            if (room[b] < length[item]) continue;
            if (bin < 0 || (rule == PACK_BEST_FIT && room[b] < room[bin])) bin = b;
        }
        if (bin < 0) room[bin = n_bins++] = capacity;
        room[bin] -= length[item];
        bin_of[item] = bin;
    }
    return n_bins;
}

static void check_same(const int32_t *length, int n, int32_t capacity)
{
    static int32_t fast[ITEMS_MAX], slow[ITEMS_MAX];
    for (int rule = PACK_BEST_FIT; rule <= PACK_FIRST_FIT; rule++) {
        int n_fast = pack_items(length, n, capacity, rule, fast),
            n_slow = pack_literally(length, n, capacity, rule, slow);
        ck_assert_msg(n_fast == n_slow, "rule %d, %d items: %d bins, not %d", rule, n, n_fast, n_slow);
        for (int i = 0; i < n; i++) {
            if (fast[i] == slow[i]) continue; // Check notes every assertion, which costs more than packing
            ck_abort_msg("rule %d: item %d of %d (length %d) in bin %d, not %d", rule, i, n, length[i], fast[i],
                         slow[i]);
        }
    }
}

START_TEST(the_rules_by_hand)
{
    // Sorted: 6 5 4 3 2. Best fit: 6|5, 4 joins 6 (room 4) exactly, 3 and 2 fill 5.
    int32_t length[] = {2, 3, 4, 5, 6}, bin_of[5];
    ck_assert_int_eq(pack_items(length, 5, 10, PACK_BEST_FIT, bin_of), 2);
    ck_assert_int_eq(bin_of[4], 0);
    ck_assert_int_eq(bin_of[2], 0);
    ck_assert_int_eq(bin_of[3], 1);
    ck_assert_int_eq(bin_of[1], 1);
    ck_assert_int_eq(bin_of[0], 1);
    // 14 (room 6), 10 (room 10), 8 with 10 (room 2): the 2 goes to the fuller bin, or to the first.
    int32_t other[] = {2, 8, 14, 10};
    ck_assert_int_eq(pack_items(other, 4, 20, PACK_BEST_FIT, bin_of), 2);
    ck_assert_int_eq(bin_of[2], 0);
    ck_assert_int_eq(bin_of[3], 1);
    ck_assert_int_eq(bin_of[1], 1);
    ck_assert_int_eq(bin_of[0], 1);
    ck_assert_int_eq(pack_items(other, 4, 20, PACK_FIRST_FIT, bin_of), 2);
    ck_assert_int_eq(bin_of[2], 0);
    ck_assert_int_eq(bin_of[3], 1);
    ck_assert_int_eq(bin_of[1], 1);
    ck_assert_int_eq(bin_of[0], 0);
    // Ties go to the earlier bin, equal lengths keep their order.
    int32_t ties[] = {6, 6, 6, 1};
    ck_assert_int_eq(pack_items(ties, 4, 10, PACK_BEST_FIT, bin_of), 3);
    ck_assert_int_eq(bin_of[0], 0);
    ck_assert_int_eq(bin_of[1], 1);
    ck_assert_int_eq(bin_of[2], 2);
    ck_assert_int_eq(bin_of[3], 0);
}
END_TEST

START_TEST(nothing_one_and_full_bins)
{
    int32_t one[] = {7}, bin_of[3];
    ck_assert_int_eq(pack_items(NULL, 0, 10, PACK_BEST_FIT, NULL), 0);
    ck_assert_int_eq(pack_items(one, 1, 7, PACK_BEST_FIT, bin_of), 1);
    ck_assert_int_eq(bin_of[0], 0);
    int32_t full[] = {7, 7, 7};
    ck_assert_int_eq(pack_items(full, 3, 7, PACK_FIRST_FIT, bin_of), 3);
    ck_assert_int_eq(pack_items(full, 3, 7, PACK_BEST_FIT, bin_of), 3);
    int32_t ones[] = {1, 1, 1};
    ck_assert_int_eq(pack_items(ones, 3, 1, PACK_BEST_FIT, bin_of), 3);
    ck_assert_int_eq(pack_items(ones, 3, 1 << 24, PACK_BEST_FIT, bin_of), 1);
}
END_TEST

START_TEST(random_sets_pack_as_the_rule_says)
{
    int32_t length[200];
    for (int round = 0; round < 5000; round++) {
        int n = 1 + (int)(random_next() % 200);
        // Small capacities make many ties, large ones use every level of the bitmap.
        int32_t capacity = 1 + (int32_t)(random_next() % (round % 3 == 0 ? 12u : round % 3 == 1 ? 900u : 300000u));
        int32_t most = 1 + (int32_t)(random_next() % (uint32_t)capacity);
        for (int i = 0; i < n; i++)
            length[i] = 1 + (int32_t)(random_next() % (uint32_t)most);
        check_same(length, n, capacity);
    }
}
END_TEST

// ---- real lengths ---------------------------------------------------------------------------------------------------

// Largest number of extra bins that best fit may take: today's figures, so that a worse rule is noticed. `longest` and
// `budget` are compared with pack_lower_bound for bins of the longest prompt and of 2,048 tokens; 0 proves that no
// packing is better. `batches` is compared with the exact solver, over all batches of 32.
struct most {
    int longest, budget, batches;
};

// The paper's prompts (arXiv 2404.09529), in Llama 2's tokens. tests/data/lengths has the first 256 of each set.
static const struct set {
    const char *name;
    struct most first, whole;
} sets[] = {
    {"alpaca", {1, 1, 1}, {2, 0, 6}}, {"hh", {0, 0, 1}, {0, 0, 3}},      {"mmlu", {0, 0, 1}, {0, 0, 1}},
    {"samsum", {0, 0, 3}, {1, 0, 5}}, {"wiki256", {1, 0, 0}, {0, 0, 0}}, {"wiki512", {0, 0, 0}, {0, 0, 2}},
};

// Checks the number of bins of `capacity` tokens against the sum of the lengths and against the lower bound of any
// packing.
static void check_bins(const char *path, const struct prompts *prompts, int32_t capacity, int most)
{
    int32_t bin_of[ITEMS_MAX];
    int bins = pack_items(prompts->length, prompts->n, capacity, PACK_BEST_FIT, bin_of);
    int least = pack_lower_bound(prompts->length, prompts->n, capacity);
    printf("%s: %d prompts, capacity %d: %d bins, at least %d by their sum, %d by any packing\n", path, prompts->n,
           (int)capacity, bins, (int)((prompts->tokens + capacity - 1) / capacity), least);
    ck_assert_msg(bins >= least, "%s: %d bins of %d, at least %d", path, bins, (int)capacity, least);
    ck_assert_msg(bins - least <= most, "%s: %d bins of %d, at most %d more than %d", path, bins, (int)capacity, most,
                  least);
}

// Packs batches of 32 prompts into bins as long as their longest prompt.
static void check_batches(const char *path, const struct prompts *prompts, int most)
{
    enum { BATCH = 32 };
    int batches = 0, proven = 0, more = 0, fewest = 0;
    for (int first = 0; first + BATCH <= prompts->n; first += BATCH, batches++) {
        const int32_t *length = prompts->length + first;
        int32_t longest = 0, bin_of[BATCH];
        for (int i = 0; i < BATCH; i++)
            if (length[i] > longest) longest = length[i];
        int lower, best = pack_exact(length, BATCH, longest, 1000000, bin_of, &lower);
        more += pack_items(length, BATCH, longest, PACK_BEST_FIT, bin_of) - best;
        fewest += best;
        proven += lower == best;
    }
    printf("%s: %d batches of %d, %d bins, proven the fewest for %d batches; best fit takes %d more\n", path, batches,
           BATCH, fewest, proven, more);
    ck_assert_int_ge(proven * 10, batches * 9);
    ck_assert_msg(more <= most, "%s: %d bins more than needed in batches, at most %d", path, more, most);
}

static void check_lengths(const char *path, const struct most *most)
{
    struct prompts prompts;
    ck_assert_msg(prompts_read_lengths(path, ITEMS_MAX, &prompts) == STATUS_OK, "%s", status_message());
    ck_assert_int_ge(prompts.n, 100);
    check_same(prompts.length, prompts.n, prompts.longest);
    check_same(prompts.length, prompts.n, 4096);
    check_bins(path, &prompts, prompts.longest, most->longest);
    check_bins(path, &prompts, 2048, most->budget); // a worker's token budget
    check_batches(path, &prompts, most->batches);
    prompts_free(&prompts);
}

static bool external; // tests the whole sets, which are outside the repository

START_TEST(real_lengths_pack_as_the_rule_says_and_nearly_as_well_as_can_be)
{
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        char *name = mem_format("lengths/%s.txt", sets[s].name);
        char *path = external ? external_data(name) : repository_data(name);
        check_lengths(path, external ? &sets[s].whole : &sets[s].first);
        free(path);
        free(name);
    }
}
END_TEST

// ---- the exact solver -----------------------------------------------------------------------------------------------

// Tries every way to put items into bins, item by item. Returns the fewest bins.
static int fewest_bins(const int32_t *length, int n, int32_t capacity, int32_t *room, int item, int bins, int best)
{
    if (bins >= best) return best;
    if (item == n) return bins;
    for (int b = 0; b <= bins; b++) {
        if (b == bins) room[b] = capacity;
        if (room[b] < length[item]) continue;
        room[b] -= length[item];
        best = fewest_bins(length, n, capacity, room, item + 1, b == bins ? bins + 1 : bins, best);
        room[b] += length[item];
    }
    return best;
}

static void check_packing(const int32_t *length, int n, int32_t capacity, const int32_t *bin_of, int bins)
{
    static int64_t fill[ITEMS_MAX];
    memset(fill, 0, sizeof fill);
    for (int i = 0; i < n; i++) {
        if (bin_of[i] < 0 || bin_of[i] >= bins) ck_abort_msg("item %d in bin %d of %d", i, bin_of[i], bins);
        fill[bin_of[i]] += length[i];
    }
    for (int b = 0; b < bins; b++)
        if (fill[b] < 1 || fill[b] > capacity) ck_abort_msg("bin %d has %d tokens", b, (int)fill[b]);
}

START_TEST(the_exact_solver_finds_what_trying_everything_finds)
{
    enum { N = 9 };
    int32_t length[N], bin_of[N], room[N];
    int better = 0;
    for (int round = 0; round < 20000; round++) {
        int n = (int)(random_next() % (N + 1)), lower;
        int32_t capacity = 1 + (int32_t)(random_next() % (round % 2 ? 12u : 100u));
        for (int i = 0; i < n; i++)
            length[i] = 1 + (int32_t)(random_next() % (uint32_t)capacity);
        int least = fewest_bins(length, n, capacity, room, 0, 0, n + 1);
        int bound = pack_lower_bound(length, n, capacity);
        int bins = pack_exact(length, n, capacity, 1000000, bin_of, &lower);
        if (bins != least || lower != least || bound > least)
            ck_abort_msg("%d items: %d bins, at least %d (bound %d), but %d are needed", n, bins, lower, bound, least);
        check_packing(length, n, capacity, bin_of, bins);
        better += bins < pack_items(length, n, capacity, PACK_BEST_FIT, bin_of);
    }
    ck_assert_int_ge(better, 1); // otherwise the test would not need a solver
}
END_TEST

START_TEST(the_lower_bound_and_the_solver_by_hand)
{
    int32_t bin_of[9];
    int lower;
    // 6 is over half of 10 and fits with nothing here: three bins, though the sum fills less than two and a half.
    const int32_t large[] = {6, 6, 6, 5};
    ck_assert_int_eq(pack_lower_bound(large, 4, 10), 4);
    // Best fit decreasing takes three (5 4 | 3 3 3 | 2), two are enough (5 3 2 | 4 3 3).
    const int32_t misled[] = {5, 4, 3, 3, 3, 2};
    ck_assert_int_eq(pack_items(misled, 6, 10, PACK_BEST_FIT, bin_of), 3);
    ck_assert_int_eq(pack_exact(misled, 6, 10, 1000, bin_of, &lower), 2);
    ck_assert_int_eq(lower, 2);
    check_packing(misled, 6, 10, bin_of, 2);
    // Without steps the solver returns the heuristic's packing and does not claim that it is the best.
    ck_assert_int_eq(pack_exact(misled, 6, 10, 0, bin_of, &lower), 3);
    ck_assert_int_eq(lower, 2);
    ck_assert_int_eq(pack_exact(NULL, 0, 10, 1000, NULL, &lower), 0);
    ck_assert_int_eq(lower, 0);
}
END_TEST

// The time is printed, not checked, because it depends on the machine and the build.
START_TEST(a_hundred_thousand_items_are_packed)
{
    enum { N = 100000 };
    static int32_t length[N], bin_of[N];
    static int64_t fill[N];
    for (int32_t capacity = 512; capacity <= 131072; capacity *= 16) {
        for (int rule = PACK_BEST_FIT; rule <= PACK_FIRST_FIT; rule++) {
            for (int i = 0; i < N; i++)
                length[i] = 1 + (int32_t)(random_next() % (uint32_t)(capacity < 2048 ? capacity : capacity / 2));
            int64_t start_us = clock_now_us();
            int n_bins = pack_items(length, N, capacity, rule, bin_of);
            printf("pack rule=%d capacity=%d items=%d bins=%d ms=%.1f\n", rule, capacity, N, n_bins,
                   (double)(clock_now_us() - start_us) / 1e3);
            memset(fill, 0, sizeof fill);
            for (int i = 0; i < N; i++) {
                if (bin_of[i] < 0 || bin_of[i] >= n_bins) ck_abort_msg("item %d in bin %d of %d", i, bin_of[i], n_bins);
                fill[bin_of[i]] += length[i];
            }
            for (int b = 0; b < n_bins; b++)
                if (fill[b] < 1 || fill[b] > capacity) ck_abort_msg("bin %d has %d tokens", b, (int)fill[b]);
        }
    }
}
END_TEST

SUITE("pack")
{
    external = external_data_wanted(argc, argv);
    TEST(real_lengths_pack_as_the_rule_says_and_nearly_as_well_as_can_be);
    if (!external) {
        TEST(the_rules_by_hand);
        TEST(nothing_one_and_full_bins);
        TEST(random_sets_pack_as_the_rule_says);
        TEST(the_exact_solver_finds_what_trying_everything_finds);
        TEST(the_lower_bound_and_the_solver_by_hand);
        TEST(a_hundred_thousand_items_are_packed);
    }
}
