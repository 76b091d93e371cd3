// SPDX-License-Identifier: Apache-2.0
// The budget of prompt work and host rows of a predicted pass, by the rules of pacing (worker/pace.h) written again.
// The budget knows no sequences. The group provides what pacing has learned.
#pragma once

#include <limits.h>

#include "worker/pace.h"

enum { PASS_ANY_ROWS = INT_MAX / 2 }; // not limited

struct pass_budget {
    const struct pace *pace; // the group's pace before the pass; borrowed
    const struct model_config *config;
    int decodes;          // decode rows
    int sampled;          // rows that the host samples
    double work_left;     // for prompt rows and reading their cached entries
    double row_work_left; // for prompt rows, without reading cached entries
    double saved;         // work saved for the next pass
    bool is_first;        // no prompt has rows so far
    bool is_unknown;      // the result depends on rounding
};

// Initialises the budget of a pass without rows. Borrows `pace` and `config`.
void pass_budget_init(struct pass_budget *b, const struct pace *pace, const struct model_config *config);

// Returns true if a pass with `decodes` decode rows gets no prompt rows, because its time must be measured.
bool pass_budget_measures_decodes(const struct pass_budget *b, int decodes);
// Returns how many rows the host may sample while the backend samples the other rows. PASS_ANY_ROWS: no limit.
int pass_budget_host_rows(const struct pass_budget *b);
// Adds a row that the host samples although the backend samples.
void pass_budget_add_sampled(struct pass_budget *b);

// Call after the decode rows were added. The functions below are for prompts with `entries` cached entries. `whole`:
// the rows complete a prompt that had no rows in an earlier pass.
void pass_budget_begin(struct pass_budget *b, int decodes);
// Grants rows of a prompt, up to `most`, and draft rows after its last row. Charges the budget for them and returns
// their number.
int pass_budget_grant(struct pass_budget *b, int entries, int most, bool whole);
int pass_budget_grant_drafts(struct pass_budget *b, int entries, int most);
// Returns true if all `rows` would be granted.
bool pass_budget_would_grant(struct pass_budget *b, int entries, int rows, bool whole);
// Returns true if no prompt has rows yet, or if a prompt without cached entries would get a row.
bool pass_budget_is_left(struct pass_budget *b, bool whole);

// Withholds half of the remaining work from prompts. Returns the work that it withholds.
double pass_budget_reserve_half(struct pass_budget *b);
// Returns the withheld work to the budget, together with the work that prompts saved.
void pass_budget_release_half(struct pass_budget *b, double half);
