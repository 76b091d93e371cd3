// SPDX-License-Identifier: Apache-2.0
// model/tail_search: the result equals the definition for any texts, and the work is proportional to the text.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/tail_search.h"
#include "tests/suite.h"
#include "text_data.h"

static size_t slow_search(const char *wanted, size_t n_wanted, const char *text, size_t n)
{
    for (size_t length = n_wanted < TAIL_SEARCH_BYTES ? n_wanted : TAIL_SEARCH_BYTES; length > 0; length--)
        for (size_t at = n; at >= length; at--)
            if (!memcmp(text + at - length, wanted + n_wanted - length, length)) return at;
    return n;
}

static size_t fill(char *text, size_t most, int letters, uint64_t *state)
{
    size_t n = random_next(state) % (most + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + random_next(state) % (uint64_t)letters);
    return n;
}

START_TEST(finds_the_last_place_of_the_longest_end)
{
    uint64_t state = 1;
    for (int round = 0; round < 20000; round++) {
        char wanted[300], text[600];
        int letters = 1 + round % 3;
        size_t n_wanted = fill(wanted, round % 2 ? 8 : sizeof wanted, letters, &state);
        size_t n = fill(text, round % 5 ? 40 : sizeof text, letters, &state);
        struct tail_search search;
        tail_search_init(&search, wanted, n_wanted);
        ck_assert_uint_eq(tail_search_run(&search, text, n), slow_search(wanted, n_wanted, text, n));
    }
}
END_TEST

START_TEST(takes_two_comparisons_per_byte_at_most)
{
    enum { BYTES = 1 << 20 };
    char *text = mem_alloc(BYTES), wanted[TAIL_SEARCH_BYTES];
    struct tail_search search;
    memset(text, 'a', BYTES);
    for (size_t b = 0; b < sizeof wanted; b += 5) { // the place of the byte that disagrees
        memset(wanted, 'a', sizeof wanted);
        wanted[b] = 'b';
        tail_search_init(&search, wanted, sizeof wanted);
        ck_assert_uint_eq(tail_search_run(&search, text, BYTES), BYTES);
        ck_assert_uint_le(search.steps, 2 * (BYTES + sizeof wanted));
    }
    free(text);
}
END_TEST

SUITE("tail search")
{
    TIMEOUT(60);
    TEST(finds_the_last_place_of_the_longest_end);
    TEST(takes_two_comparisons_per_byte_at_most);
}
