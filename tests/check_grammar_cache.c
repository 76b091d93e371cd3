// SPDX-License-Identifier: Apache-2.0
// grammar/cache: grammars are found by kind and whole text, and the most recently used ones are kept.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/grammar/cache.h"
#include "tests/suite.h"

static struct grammar_cache *cache;

static void setup(void)
{
    cache = grammar_cache_create();
}

static void teardown(void)
{
    grammar_cache_free(cache);
}

static bool has(enum grammar_kind kind, const char *text)
{
    const struct grammar_spec spec = grammar_spec_of(kind, (char *)text);
    return grammar_cache_has(cache, &spec);
}

static void add(enum grammar_kind kind, const char *text)
{
    const struct grammar_spec spec = grammar_spec_of(kind, (char *)text);
    grammar_cache_add(cache, &spec);
}

// Returns text number i.
static char *text_of(int i, size_t bytes)
{
    char *text = mem_alloc(bytes + 1);
    memset(text, 'x', bytes);
    text[bytes - 1] = (char)('0' + i);
    return text;
}

static void add_texts(int n, size_t bytes)
{
    for (int i = 0; i < n; i++) {
        char *text = text_of(i, bytes);
        add(GRAMMAR_REGEX, text);
        free(text);
    }
}

static bool has_text(int i, size_t bytes)
{
    char *text = text_of(i, bytes);
    bool found = has(GRAMMAR_REGEX, text);
    free(text);
    return found;
}

START_TEST(a_grammar_is_its_kind_and_its_whole_text)
{
    ck_assert(!has(GRAMMAR_REGEX, "ab"));
    add(GRAMMAR_REGEX, "ab");
    ck_assert(has(GRAMMAR_REGEX, "ab"));
    ck_assert(!has(GRAMMAR_LARK, "ab"));
    ck_assert(!has(GRAMMAR_REGEX, "abc"));
    ck_assert(!has(GRAMMAR_REGEX, "a"));
}
END_TEST

START_TEST(the_least_recently_used_grammar_is_forgotten)
{
    add_texts(GRAMMAR_CACHE_ENTRIES, 2);
    ck_assert(has_text(0, 2));
    add(GRAMMAR_REGEX, "more");
    ck_assert(has_text(0, 2));
    ck_assert(!has_text(1, 2));
    ck_assert(has_text(2, 2));
    ck_assert(has(GRAMMAR_REGEX, "more"));
}
END_TEST

START_TEST(the_texts_have_a_bound)
{
    enum { FIT = GRAMMAR_CACHE_BYTES / GRAMMAR_TEXT_BYTES_MAX };
    add_texts(FIT, GRAMMAR_TEXT_BYTES_MAX);
    add_texts(FIT, GRAMMAR_TEXT_BYTES_MAX); // counted once
    ck_assert(has_text(0, GRAMMAR_TEXT_BYTES_MAX));
    add(GRAMMAR_REGEX, "more");
    ck_assert(!has_text(1, GRAMMAR_TEXT_BYTES_MAX));
    ck_assert(has_text(2, GRAMMAR_TEXT_BYTES_MAX));
    ck_assert(has_text(0, GRAMMAR_TEXT_BYTES_MAX));
}
END_TEST

SUITE("grammar_cache")
{
    FIXTURE(setup, teardown);
    TEST(a_grammar_is_its_kind_and_its_whole_text);
    TEST(the_least_recently_used_grammar_is_forgotten);
    TEST(the_texts_have_a_bound);
}
