// SPDX-License-Identifier: Apache-2.0
// See slow_importance.h. Every step computes the prompt and all generated tokens again; nothing is cached.
#include "tests/slow_importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

// Applies softmax to scores [n] in place.
static void softmax(double *score, int n)
{
    double best = -INFINITY, total = 0;
    for (int j = 0; j < n; j++)
        best = fmax(best, score[j]);
    for (int j = 0; j < n; j++)
        total += score[j] = exp(score[j] - best);
    for (int j = 0; j < n; j++)
        score[j] /= total;
}

void slow_raise(const double *probability, int n, int window, double *maximum)
{
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int i = j - window / 2; i <= j + window / 2; i++)
            sum += i >= 0 && i < n ? probability[i] : 0;
        if (sum / window > maximum[j]) maximum[j] = sum / window;
    }
}

// Writes the token with the best logit. Returns its distance to the second.
static double greedy(const double *logits, int vocab, int32_t *token_p)
{
    double best = -INFINITY, second = -INFINITY;
    for (int v = 0; v < vocab; v++) {
        if (logits[v] > best) {
            second = best;
            best = logits[v];
            *token_p = v;
        } else {
            second = fmax(second, logits[v]);
        }
    }
    return best - second;
}

int slow_importance(const struct slow_llama *slow, const struct tiny_model *spec, const int32_t *prompt, int n,
                    int look_ahead, int window, const int32_t *eos, int n_eos, double *importance, int32_t *sampled,
                    double *gap_p)
{
    int longest = n + look_ahead, heads = spec->n_layers * spec->n_heads;
    int32_t *tokens = mem_alloc_array((size_t)longest, sizeof *tokens);
    int32_t *positions = mem_alloc_array((size_t)longest, sizeof *positions);
    double *logits = mem_alloc_array((size_t)longest * (size_t)spec->vocab_size, sizeof *logits);
    double *scores = mem_alloc_array((size_t)heads * (size_t)longest * (size_t)longest, sizeof *scores);
    double *maximum = mem_alloc_array((size_t)n, sizeof *maximum);
    memcpy(tokens, prompt, (size_t)n * sizeof *tokens);
    memset(importance, 0, (size_t)n * sizeof *importance);
    for (int i = 0; i < longest; i++)
        positions[i] = i;
    *gap_p = INFINITY;
    int steps = 0;
    for (bool ended = false; steps < look_ahead && !ended; steps++) {
        int rows = n + steps, last = rows - 1;
        slow_llama_run(slow, tokens, positions, rows, logits, scores);
        memset(maximum, 0, (size_t)n * sizeof *maximum);
        for (int h = 0; h < heads; h++) {
            double *row = scores + ((size_t)h * (size_t)rows + (size_t)last) * (size_t)rows; // row of the last token
            softmax(row, n);                                                                 // over the prompt alone
            slow_raise(row, n, window, maximum);
        }
        for (int j = 0; j < n; j++)
            importance[j] += maximum[j];
        double gap = greedy(logits + (size_t)last * (size_t)spec->vocab_size, spec->vocab_size, &sampled[steps]);
        if (steps + 1 < look_ahead) *gap_p = fmin(*gap_p, gap); // the last token is not used
        tokens[rows] = sampled[steps];
        for (int i = 0; i < n_eos; i++)
            ended = ended || sampled[steps] == eos[i];
    }
    for (int j = 0; j < n; j++)
        importance[j] /= steps;
    free(maximum);
    free(scores);
    free(logits);
    free(positions);
    free(tokens);
    return steps;
}
