// SPDX-License-Identifier: Apache-2.0
// RULER's aggregation tasks: the most common words of a numbered list, and the most frequent words of a coded text.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ruler_draft.h"
#include "lib/base/mem.h"

// ---- common words ---------------------------------------------------------------------------------------------------

enum { COMMON = 10, EXAMPLE_OTHERS = 10, SHORT_TOKENS = 4096 };

// Words of one list: single words while there are enough, else keys such as "amber-lantern". `first` is the index of
// the first one.
struct word_source {
    uint64_t shuffle;
    int *order; // [ruler_n_words()]
    bool keys;
    int first;
};

static const char *source_word(const struct word_source *s, int index, char key[RULER_KEY_BYTES])
{
    if (!s->keys) return ruler_word(s->order[s->first + index]);
    ruler_key(s->shuffle, s->first + index, key);
    return key;
}

// Writes a shuffled list in which COMMON words occur `common` times and `others` words occur `other` times.
static void write_list(struct ruler_draft *d, const struct word_source *s, int common, int others, int other)
{
    const int n = COMMON * common + others * other;
    int *order = ruler_order(&d->random, n);
    char key[RULER_KEY_BYTES];
    fputs("The numbered list below repeats some words. Remember the words that occur most often.\n\n", d->out);
    for (int i = 0; i < n; i++) {
        int word = order[i] < COMMON * common ? order[i] / common : COMMON + (order[i] - COMMON * common) / other;
        fprintf(d->out, "%s%d. %s", i ? " " : "", i + 1, source_word(s, word, key));
    }
    fputs("\n\nQuestion: Which 10 words occur most often in the list above?\n", d->out);
    free(order);
}

static const char common_prefix[] = "Answer: The 10 most common words of the list are:";

void ruler_write_common_words(struct ruler_draft *d)
{
    struct word_source s = {.shuffle = random_next(&d->random), .order = ruler_order(&d->random, ruler_n_words())};
    const int example_words = COMMON + EXAMPLE_OTHERS;
    const bool is_short = d->request->tokens < SHORT_TOKENS;
    char key[RULER_KEY_BYTES];
    write_list(d, &s, 3, EXAMPLE_OTHERS, 1);
    fputs(common_prefix, d->out);
    for (int i = 0; i < COMMON; i++)
        fprintf(d->out, "%s %s", i ? "," : "", source_word(&s, i, key));
    fputs("\n\n", d->out);
    s.first = example_words;
    s.keys = example_words + COMMON + d->units > ruler_n_words();
    write_list(d, &s, is_short ? 10 : 30, d->units, is_short ? 1 : 3);
    for (int i = 0; i < COMMON; i++)
        ruler_add_answer(d, source_word(&s, i, key));
    ruler_write_prefix(d, common_prefix);
    free(s.order);
}

// ---- frequent words -------------------------------------------------------------------------------------------------

enum { CODED_BYTES = 7, FREQUENT = 3 };

// Returns the number of words with at least one place in a text of n words, and their counts from the most frequent.
static int zeta_counts(int n, int **counts_p)
{
    const double zeta_2 = M_PI * M_PI / 6;
    int words = 0;
    int *counts = mem_alloc_array((size_t)n, sizeof *counts);
    for (int rank = 1; rank <= n; rank++) {
        int count = (int)(n / zeta_2 / rank / rank);
        if (!count) break;
        counts[words++] = count;
    }
    *counts_p = counts;
    return words;
}

static void make_coded(struct random_source *r, int rank, char word[CODED_BYTES])
{
    for (int i = 0; i < CODED_BYTES - 1; i++)
        word[i] = (char)('a' + random_below(r, 26));
    word[0] = (char)('a' + rank % 26); // neighbouring ranks cannot have the same word
    word[CODED_BYTES - 1] = 0;
}

void ruler_write_frequent_words(struct ruler_draft *d)
{
    int *counts, total = 0, at = 0, n_words = zeta_counts(d->units, &counts);
    char(*words)[CODED_BYTES] = mem_alloc_array((size_t)n_words, sizeof *words);
    for (int w = 0; w < n_words; w++) {
        make_coded(&d->random, w, words[w]);
        total += counts[w];
    }
    memcpy(words[0], "...", 4); // the most frequent word is noise
    int *text = mem_alloc_array((size_t)total, sizeof *text);
    for (int w = 0; w < n_words; w++)
        for (int i = 0; i < counts[w]; i++)
            text[at++] = w;
    int *order = ruler_order(&d->random, total);
    fputs("The coded text below repeats coded words. Track how often each one occurs. Dots are no words.\n\n", d->out);
    for (int i = 0; i < total; i++)
        fprintf(d->out, "%s%s", i ? " " : "", words[text[order[i]]]);
    fputs("\n\nQuestion: Which three coded words occur most often in the text above?\n", d->out);
    for (int w = 1; w <= FREQUENT; w++)
        ruler_add_answer(d, words[w]);
    ruler_write_prefix(d, "Answer: The three most frequent coded words are:");
    free(order);
    free(text);
    free(words);
    free(counts);
}
