// SPDX-License-Identifier: Apache-2.0
// How much prompt work and how many rows of the host a pass may contain, by the rules of pacing (worker/pace.h) written
// again for a pass that is predicted. It knows no sequences. What pacing has learned is the group's own.
#pragma once

#include <limits.h>

#include "worker/pace.h"

enum { PASS_ANY_ROWS = INT_MAX / 2 }; // not limited

struct pass_budget {
    const struct pace *pace; // of the group, before the pass
    const struct model_config *config;
    int decodes, sampled; // rows of the pass: of decodes; that the host samples
    double work_left;     // for rows of prompts, and for reading their cached entries
    double row_work_left; // for rows of prompts alone
    double saved;         // for the next pass
    bool is_first;        // no prompt has rows yet
    bool is_unknown;      // it depends on rounding
};

// Before the pass has rows. Borrows both.
void pass_budget_init(struct pass_budget *b, const struct pace *pace, const struct model_config *config);

// Whether a pass with `decodes` decode rows gets no prompt rows, because its time is to be measured.
bool pass_budget_measures_decodes(const struct pass_budget *b, int decodes);
// Rows that the host may read beside sequences that the backend samples, or PASS_ANY_ROWS.
int pass_budget_host_rows(const struct pass_budget *b);
// A row is added that the host samples, although the backend samples others.
void pass_budget_add_sampled(struct pass_budget *b);

// After the decode rows. What follows is for prompts, with `entries` cached entries each. `whole`: the rows complete
// the prompt, of which no earlier pass had rows.
void pass_budget_begin(struct pass_budget *b, int decodes);
// How many rows of a prompt the pass gets, at most `most`, and how many draft rows behind its last row. Their work is
// taken from the budget.
int pass_budget_grant(struct pass_budget *b, int entries, int most, bool whole);
int pass_budget_grant_drafts(struct pass_budget *b, int entries, int most);
// Whether all `rows` would be granted, and whether any would be to a prompt without cached entries.
bool pass_budget_would_grant(struct pass_budget *b, int entries, int rows, bool whole);
bool pass_budget_is_left(struct pass_budget *b, bool whole);

// Withholds half of the work left from prompts, and returns it. Releasing it also returns what prompts saved.
double pass_budget_reserve_half(struct pass_budget *b);
void pass_budget_release_half(struct pass_budget *b, double half);
