// SPDX-License-Identifier: Apache-2.0
// The budget of one pass: how many prompt rows and draft rows of prompts the pass may have, and how many cached entries
// it may read, according to pacing (pace.h).
//
//     pace_budget_init(&b, &pace);               // before the pass has rows
//     pace_budget_set_decodes(&b, decodes);      // after its decode rows
//     rows = pace_budget_grant_rows(&b, ...);    // for each prompt
//
// Plain data that belongs to the pass; several passes can have budgets at the same time.
#pragma once

#include "worker/pace.h"

struct pace_budget {
    struct pace *pace; // borrowed
    double work_left;  // work that prompt rows may still use; INFINITY: no limit
    // The same without reading of cached entries; INFINITY in a pass without decodes.
    double row_work_left;
    bool is_first; // no prompt has rows in the pass yet
    struct pace_rows rows;
};

void pace_budget_init(struct pace_budget *b, struct pace *pace);

// Sets the budget of prompts in a pass with `decodes` decode rows.
void pace_budget_set_decodes(struct pace_budget *b, int decodes);

// Returns how many rows (up to `rows_max`) of a prompt with `entries` cached entries the pass gets, and charges them.
// `whole` is true if rows_max rows complete the prompt and no earlier pass contained a part of it.
int pace_budget_grant_rows(struct pace_budget *b, int entries, int rows_max, bool whole);

// Returns how many draft rows (up to `rows`) the pass gets after the last row of a prompt with `entries` tokens, and
// charges them.
int pace_budget_grant_draft_rows(struct pace_budget *b, int entries, int rows);

// Returns true if pace_budget_grant_rows() would grant all `rows`.
bool pace_budget_would_grant(const struct pace_budget *b, int entries, int rows, bool whole);

// Returns true if pace_budget_grant_rows() may still grant rows to a prompt without cached entries.
bool pace_budget_has_rows(const struct pace_budget *b, bool whole);

// Returns a budget with half of the work that is left in `b`. pace_budget_merge() charges `b` for the rows granted from
// this half, and gives back to `b` the work that a prompt saved from the half.
struct pace_budget pace_budget_half(const struct pace_budget *b);
void pace_budget_merge(struct pace_budget *b, const struct pace_budget *half);

// Counts and charges a row that the host will sample.
void pace_budget_add_sampled(struct pace_budget *b);
