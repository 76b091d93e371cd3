// SPDX-License-Identifier: Apache-2.0
// BM25 over the chunks of a prompt (Robertson, Zaragoza: The Probabilistic Relevance Framework, 2009): the ranking that
// a user would build without a model. The query is the last paragraph of the prompt.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/quality.h"
#include "lib/base/fnv.h"
#include "lib/base/mem.h"

// The words of a prompt. A word belongs to the token in which it begins.
struct words {
    uint64_t *hash; // [n]
    int *token;     // [n]
    int n, room;
};

// Returns the text of the prompt. starts [n + 1] receives the byte at which each token begins.
static enum status prompt_text(const struct quality *q, const struct model_pair_prompt *p, size_t *starts,
                               char **text_p)
{
    char *text = mem_string("");
    size_t size = 0;
    for (int t = 0; t < p->n; t++) {
        char *piece;
        enum status status = tokenizer_decode(q->tokenizer, &p->tokens[t], 1,
                                              TOKENIZER_SKIP_SPECIAL | TOKENIZER_CONTINUATION, &piece, NULL);
        if (status != STATUS_OK) {
            free(text);
            return status;
        }
        const size_t more = strlen(piece);
        starts[t] = size;
        text = mem_resize(text, size + more + 1, 1);
        memcpy(text + size, piece, more + 1);
        size += more;
        free(piece);
    }
    starts[p->n] = size;
    *text_p = text;
    return STATUS_OK;
}

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static void words_find(const char *text, const size_t *starts, struct words *words)
{
    int token = 0;
    for (size_t at = 0; text[at];) {
        if (!in_word(text[at])) {
            at++;
            continue;
        }
        uint64_t hash = FNV_START;
        while (starts[token + 1] <= at)
            token++;
        const int first = token;
        for (; text[at] && in_word(text[at]); at++) {
            const char lower = (char)tolower((unsigned char)text[at]);
            hash = fnv1a(hash, &lower, 1);
        }
        if (words->n == words->room) {
            words->room = words->room ? 2 * words->room : 256;
            words->hash = mem_resize(words->hash, (size_t)words->room, sizeof *words->hash);
            words->token = mem_resize(words->token, (size_t)words->room, sizeof *words->token);
        }
        words->hash[words->n] = hash;
        words->token[words->n++] = first;
    }
}

// Returns the first word of the last paragraph.
static int query_begin(const char *text, const size_t *starts, const struct words *words)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, "\n\n")); at++)
        last = at;
    const size_t begin = last ? (size_t)(last - text) : 0;
    int w = 0;
    while (w < words->n && starts[words->token[w]] < begin)
        w++;
    return w;
}

// Sets chunk [n] to the chunk of each token: sentences and lines, or `chunk_tokens` tokens. Returns the number of
// chunks.
static int chunks_find(const struct quality *q, const struct model_pair_prompt *p, int chunk_tokens, int *chunk)
{
    uint8_t *ends = chunk_tokens == CHUNK_TOKENS_AUTO ? sentence_ends_create(&q->sentences, p->tokens, p->n) : NULL;
    int n = 0;
    for (int t = 0; t < p->n; t++) {
        chunk[t] = ends ? n : chunk_tokens ? t / chunk_tokens : t;
        n = ends ? n + ends[t] : chunk[t] + 1;
    }
    const int chunks = chunk[p->n - 1] + 1;
    free(ends);
    return chunks;
}

// Adds the score of one word of the query to each chunk [n_chunks] that has it.
static void add_term(const struct words *words, int n_words, const int *chunk, const int *lengths, int n_chunks,
                     uint64_t term, int *counts, double *scores)
{
    const double k1 = 1.2, b = 0.75, mean = (double)n_words / n_chunks;
    int with_term = 0;
    memset(counts, 0, (size_t)n_chunks * sizeof *counts);
    for (int w = 0; w < n_words; w++)
        if (words->hash[w] == term) with_term += counts[chunk[words->token[w]]]++ == 0;
    const double rarity = log(1 + (n_chunks - with_term + 0.5) / (with_term + 0.5));
    for (int c = 0; c < n_chunks && with_term; c++)
        scores[c] += rarity * counts[c] * (k1 + 1) / (counts[c] + k1 * (1 - b + b * lengths[c] / mean));
}

enum status quality_rank_bm25(const struct quality *q, struct model_pair_prompt *p, int chunk_tokens)
{
    struct words words = {.n = 0};
    size_t *starts = mem_alloc_array((size_t)p->n + 1, sizeof *starts);
    int *chunk = mem_alloc_array((size_t)p->n, sizeof *chunk);
    char *text = NULL;
    enum status status = prompt_text(q, p, starts, &text);
    if (status == STATUS_OK) {
        words_find(text, starts, &words);
        const int n_chunks = chunks_find(q, p, chunk_tokens, chunk), first = query_begin(text, starts, &words);
        int *lengths = mem_alloc_array((size_t)n_chunks, sizeof *lengths);
        int *counts = mem_alloc_array((size_t)n_chunks, sizeof *counts);
        double *scores = mem_alloc_array((size_t)n_chunks, sizeof *scores);
        for (int w = 0; w < first; w++)
            lengths[chunk[words.token[w]]]++;
        for (int w = first; w < words.n && first; w++)
            add_term(&words, first, chunk, lengths, n_chunks, words.hash[w], counts, scores);
        for (int t = 0; t < p->n; t++)
            p->importance[t] = (float)scores[chunk[t]];
        free(scores);
        free(counts);
        free(lengths);
    }
    free(text);
    free(words.hash);
    free(words.token);
    free(chunk);
    free(starts);
    return status;
}
