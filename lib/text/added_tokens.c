// SPDX-License-Identifier: Apache-2.0
// See added_tokens.h. The sorted array is searched like a trie: each byte of the text narrows the range of tokens that
// still match.
#include "lib/text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "lib/text/unicode.h"

static int compare_contents(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    int order = memcmp(x->content, y->content, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

enum status added_set_init(struct added_set *set, struct added_token *tokens, int n)
{
    *set = (struct added_set){.tokens = tokens, .n = n};
    if (n) qsort(tokens, (size_t)n, sizeof *tokens, compare_contents);
    for (int i = 0; i < n; i++) {
        if (i && !compare_contents(&tokens[i - 1], &tokens[i]))
            return status_fail(STATUS_DATA, "added_tokens: ids %d and %d have the same content", tokens[i - 1].id,
                               tokens[i].id);
        unsigned char first = (unsigned char)tokens[i].content[0];
        set->starts[first] = true;
        set->only_start = i == 0 || set->only_start == first ? first : -1;
    }
    return STATUS_OK;
}

void added_set_fini(struct added_set *set)
{
    for (int i = 0; i < set->n; i++)
        free(set->tokens[i].content);
    free(set->tokens);
    *set = (struct added_set){0};
}

// Returns the first token in [low, high) with a byte of at least `byte` at `depth`. Every token in the range is longer
// than `depth`.
static int lower_bound(const struct added_set *set, int low, int high, size_t depth, int byte)
{
    while (low < high) {
        int middle = low + (high - low) / 2;
        if ((unsigned char)set->tokens[middle].content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Returns true if the token is not special, or if special tokens are parsed and the token's text is outside the
// policy's ranges.
static bool is_allowed(const struct added_token *token, const struct text_span *span, size_t start,
                       const struct special_policy *policy)
{
    if (!token->special) return true;
    if (!policy->parse_special) return false;
    if (!policy->n) return true;
    size_t first = text_span_origin(span, start), last = text_span_origin(span, start + token->n - 1);
    int low = 0, high = policy->n; // find the first range with an end after `first`
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (policy->ranges[middle].end <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low == policy->n || policy->ranges[low].start > last;
}

// Returns the longest allowed token at `start`, or NULL. *depth_p is the number of bytes that were compared.
static const struct added_token *longest_at(const struct added_set *set, const struct text_span *span, size_t start,
                                            const struct special_policy *policy, size_t *depth_p)
{
    const struct added_token *best = NULL;
    int low = 0, high = set->n;
    size_t depth = 0;
    for (; low < high; depth++) {
        if (set->tokens[low].n == depth) { // the shortest token sorts first
            if (is_allowed(&set->tokens[low], span, start, policy)) best = &set->tokens[low];
            low++;
        }
        if (start + depth == span->n) break;
        int byte = (unsigned char)span->text[start + depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    *depth_p = depth;
    return best;
}

static bool touches_word(const struct text_span *span, size_t start, size_t end)
{
    size_t length;
    if (start && unicode_is_word(utf8_decode(span->text + utf8_before(span->text, start), &length))) return true;
    return end < span->n && unicode_is_word(utf8_decode(span->text + end, &length));
}

// Returns the first byte at or after `at` with which a token may start, or the end of the text.
static size_t next_start(const struct added_set *set, const struct text_span *span, size_t at)
{
    if (set->n == 0) return span->n;
    if (set->only_start >= 0) {
        const char *found = memchr(span->text + at, set->only_start, span->n - at);
        return found ? (size_t)(found - span->text) : span->n;
    }
    while (at < span->n && !set->starts[(unsigned char)span->text[at]])
        at++;
    return at;
}

enum status added_set_search(const struct added_set *set, const struct text_span *span, size_t from, size_t floor,
                             const struct special_policy *policy, struct pattern_scratch *work,
                             struct added_match *match_p, bool *found_p)
{
    *found_p = false;
    for (size_t at = from; (at = next_start(set, span, at)) < span->n; at++) {
        size_t depth, length;
        const struct added_token *token = longest_at(set, span, at, policy, &depth);
        TRY(pattern_scratch_spend(work, depth));
        if (!token) continue;
        size_t start = at, end = at + token->n;
        if (token->single_word && touches_word(span, start, end)) {
            at = end - 1; // like Hugging Face, without trying a shorter token here
            continue;
        }
        if (token->lstrip && start < floor) start = floor;
        if (token->lstrip)
            while (start > floor) {
                size_t before = utf8_before(span->text, start);
                if (before < floor || !unicode_is_space(utf8_decode(span->text + before, &length))) break;
                start = before;
            }
        if (token->rstrip)
            for (; end < span->n && unicode_is_space(utf8_decode(span->text + end, &length)); end += length)
                ;
        *match_p = (struct added_match){.token = token, .start = start, .end = end, .next = at + token->n};
        *found_p = true;
        break;
    }
    return STATUS_OK;
}
