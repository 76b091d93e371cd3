// SPDX-License-Identifier: Apache-2.0
#include "lib/text/tail_search.h"

// Returns byte `i` of the wanted text, read backwards.
static char byte_of(const struct tail_search *s, size_t i)
{
    return *(s->end - 1 - i);
}

// Returns how many bytes match if `byte` follows `matched` matching bytes.
static size_t match_next(struct tail_search *s, size_t matched, char byte)
{
    for (; matched > 0 && byte_of(s, matched) != byte; s->steps++)
        matched = s->border[matched - 1];
    s->steps++;
    return matched + (byte_of(s, matched) == byte);
}

void tail_search_init(struct tail_search *search, const char *wanted, size_t n)
{
    search->end = wanted + n;
    search->n = n < TAIL_SEARCH_BYTES ? n : TAIL_SEARCH_BYTES;
    search->border[0] = 0;
    search->steps = 0;
    for (size_t i = 1; i < search->n; i++)
        search->border[i] = match_next(search, search->border[i - 1], byte_of(search, i));
}

size_t tail_search_run(struct tail_search *search, const char *text, size_t n)
{
    size_t longest = 0, matched = 0, place = n;
    for (size_t at = n; at > 0 && longest < search->n; at--) {
        matched = match_next(search, matched, text[at - 1]);
        if (matched <= longest) continue;
        longest = matched;
        place = at - 1 + matched;
    }
    return place;
}
