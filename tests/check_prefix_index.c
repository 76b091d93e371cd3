// SPDX-License-Identifier: Apache-2.0
// router/sched/prefix_index against a plain list ordered by last use, and the common part of prefix chains.
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "router/sched/prefix_index.h"

enum { TOKENS = 200, CAPACITY = 30, CHAINS = 12 };

static const struct hash_key key = {1, 2};

START_TEST(chains_differ_from_the_first_different_token_or_position_on)
{
    int32_t a[TOKENS], b[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        a[i] = b[i] = i % 50;
    b[70] = 99;
    const struct token_range whole = {0, TOKENS - 1}, gaps[2] = {{0, 39}, {48, TOKENS - 1}}, none = {0, 14};
    uint64_t *one, *same, *other, *pruned, *empty;
    ck_assert_int_eq(prefix_chain_make(&key, a, &whole, 1, &one), 12);
    ck_assert_int_eq(prefix_chain_make(&key, a, &whole, 1, &same), 12);
    ck_assert_int_eq(prefix_chain_make(&key, b, &whole, 1, &other), 12);
    ck_assert_int_eq(prefix_chain_make(&key, a, gaps, 2, &pruned), 12); // 192 tokens
    ck_assert_int_eq(prefix_chain_make(&key, a, &none, 1, &empty), 0);
    ck_assert_ptr_null(empty);
    struct prefix_index *index = prefix_index_create(100);
    ck_assert_int_eq(prefix_index_match(index, one, 12), 0);
    prefix_index_add(index, one, 12);
    ck_assert_int_eq(prefix_index_match(index, same, 12), 12);
    ck_assert_int_eq(prefix_index_match(index, same, 5), 5);
    ck_assert_int_eq(prefix_index_match(index, other, 12), 4);  // token 70 is in the fifth block
    ck_assert_int_eq(prefix_index_match(index, pruned, 12), 2); // the third holds tokens 32 to 39 and 48 to 55
    ck_assert_int_eq(prefix_index_match(index, NULL, 0), 0);
    prefix_index_add(index, NULL, 0);
    prefix_index_free(index);
    prefix_index_free(NULL);
    free(one);
    free(same);
    free(other);
    free(pruned);
}
END_TEST

// Hashes, the one used last at the end.
struct list {
    uint64_t number[CAPACITY];
    int n;
};

static void use(struct list *list, uint64_t number)
{
    int at = 0;
    while (at < list->n && list->number[at] != number)
        at++;
    if (at == list->n && list->n == CAPACITY) at = 0;
    if (at < list->n) memmove(list->number + at, list->number + at + 1, (size_t)(--list->n - at) * sizeof(uint64_t));
    list->number[list->n++] = number;
}

START_TEST(the_chain_used_longest_ago_is_evicted_from_its_end)
{
    struct prefix_index *index = prefix_index_create(CAPACITY);
    struct list list = {.n = 0};
    uint64_t chains[CHAINS][40];
    uint32_t random = 5;
    for (int c = 0; c < CHAINS; c++) // each shares a prefix with the one before it
        for (int i = 0; i < 40; i++)
            chains[c][i] = c && i < 3 * (c % 5) ? chains[c - 1][i] : (uint64_t)(c * 1000 + i + 1) * 64;
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        const uint64_t *chain = chains[(random >> 8) % CHAINS];
        int n = 1 + (int)(random >> 16) % 40, known = 0;
        bool there = true;
        while (there && known < n) {
            there = false;
            for (int i = 0; i < list.n; i++)
                there |= list.number[i] == chain[known];
            known += there;
        }
        ck_assert_int_eq(prefix_index_match(index, chain, n), known);
        if (random >> 31) continue;
        prefix_index_add(index, chain, n);
        for (int i = (n < CAPACITY ? n : CAPACITY) - 1; i >= 0; i--)
            use(&list, chain[i]);
    }
    prefix_index_free(index);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prefix_index");
    TCase *tcase = tcase_create("prefix_index");
    tcase_add_test(tcase, chains_differ_from_the_first_different_token_or_position_on);
    tcase_add_test(tcase, the_chain_used_longest_ago_is_evicted_from_its_end);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
