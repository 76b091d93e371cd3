// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/compress_choice.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"

struct candidate {
    double score; // mean importance of its tokens
    int tokens;
    int text, unit;
    bool fixed; // always kept
};

struct compress_choice {
    struct compression *c;
    struct candidate *candidates; // [n] the best first
    int n;
    int always; // number of tokens that are always kept, or belong to no unit
    int frames; // number of tokens of frames, which depend on other units; recounted after a choice
};

static int candidate_compare(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->text != b->text) return a->text < b->text ? -1 : 1;
    return a->unit < b->unit ? -1 : 1;
}

// Adds the units of a text. *token_p is the first token that begins in the text or after it.
static void add_units(struct compress_choice *choice, int t, const float *importance, int *token_p)
{
    const struct compression *c = choice->c;
    const struct compress_text *text = &c->texts[t];
    struct candidate *best = NULL;
    bool fixed = false;
    for (int u = 0; u < text->units.n; u++) {
        const struct cut_unit *unit = &text->units.units[u];
        size_t end = text->joined.start + unit->range.end;
        struct candidate candidate = {.text = t, .unit = u, .fixed = unit->fixed};
        double sum = 0;
        for (; *token_p < c->tokens_before && c->starts[*token_p] < end; ++*token_p, candidate.tokens++)
            sum += importance[*token_p];
        if (unit->frame) {
            choice->frames += candidate.tokens;
            continue;
        }
        candidate.score = candidate.tokens ? sum / candidate.tokens : 0;
        choice->candidates[choice->n] = candidate;
        fixed |= candidate.fixed;
        if (!best || candidate.score > best->score) best = &choice->candidates[choice->n];
        choice->n++;
    }
    if (best && !fixed) best->fixed = true;
}

struct compress_choice *compress_choice_create(struct compression *c, const float *importance)
{
    struct compress_choice *choice = mem_alloc(sizeof *choice);
    int n = 0, token = 0, free_tokens = 0;
    for (int t = 0; t < c->n_texts; t++)
        n += c->texts[t].units.n;
    choice->c = c;
    choice->candidates = mem_alloc_array((size_t)n + 1, sizeof *choice->candidates);
    while (token < c->tokens_before && c->starts[token] == SIZE_MAX)
        token++;
    for (int t = 0; t < c->n_texts; t++) {
        while (token < c->tokens_before && c->starts[token] < c->texts[t].joined.start)
            token++; // begins in the blank line before the text
        add_units(choice, t, importance, &token);
    }
    for (int i = 0; i < choice->n; i++)
        free_tokens += choice->candidates[i].fixed ? 0 : choice->candidates[i].tokens;
    choice->always = c->tokens_before - choice->frames - free_tokens;
    qsort(choice->candidates, (size_t)choice->n, sizeof *choice->candidates, candidate_compare);
    return choice;
}

void compress_choice_free(struct compress_choice *choice)
{
    free(choice->candidates);
    free(choice);
}

int compress_choice_budget(const struct compress_choice *choice, const struct compress_goal *goal)
{
    // A rate that was computed from a number of tokens gives this number again.
    int tokens = (int)ceil(goal->keep_rate * choice->c->tokens_before - 1e-6);
    return goal->beyond ? choice->always + tokens : tokens;
}

void compress_choice_keep(struct compress_choice *choice, int budget)
{
    int used = choice->always;
    for (int i = 0; i < choice->n; i++) {
        const struct candidate *candidate = &choice->candidates[i];
        bool kept = candidate->fixed || used + candidate->tokens <= budget;
        if (kept && !candidate->fixed) used += candidate->tokens;
        choice->c->texts[candidate->text].keep[candidate->unit] = kept;
    }
}
