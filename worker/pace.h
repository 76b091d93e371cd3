// SPDX-License-Identifier: Apache-2.0
// Pacing: how many prompt rows a pass may contain. While sequences decode, a long prompt is cut into chunks small
// enough that running sequences wait little longer for their next token (stall-free batching, arXiv 2403.02310; there
// the chunk is a constant, here it follows the measured time of passes). While no sequence decodes, a chunk that does
// not complete its prompt is limited to half a second, because a request that arrives meanwhile waits for it.
//
// The reference is the time of a pass with decode rows only. It is measured again from time to time, by two passes
// without prompt rows: the first one runs with caches that prompts have filled, the second one counts. Until then, some
// decode rows more or fewer are charged as prompt rows would be. The time that prompt rows add to a pass is modelled as
// proportional to their work: the rows, their attention to the entries before them, and, once per prompt and pass,
// reading its cached entries at the speed at which weights are read. The factor is learned from every pass. The work of
// rows beside decodes at most doubles from one mixed pass to the next; what they read does not count in that. So chunks
// shrink as a prompt grows, while a short prompt beside a long one keeps large chunks. A prompt whose cached entries
// take longer to read than a pass may last skips passes and saves their budget until it is enough: few passes are long
// then, and the mean time stays within the target.
//
// Sampling on the host is part of a pass, too. While other sequences run, the rows sampled on the host take at most
// half of the time that the target allows beside the decode rows, or one row a pass; prompt rows get the rest. So
// requests with penalties or log-probabilities do not lengthen a pass beyond the target, or by more than one sampled
// row, once both times are measured.
//
// Pacing decides when rows are computed, never their result. Plain data without a clock; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/config.h"

enum {
    PACE_TWICE = 0,      // a pass takes at most twice the time of its decode rows alone
    PACE_UNLIMITED = -1, // prompts fill the pass
};

// Work is measured in millions of floating-point operations of prompt rows.
struct pace {
    int64_t target_us;          // time of a pass with decode rows, or PACE_TWICE, PACE_UNLIMITED
    double row_work, pair_work; // of one prompt row, and of its attention to one entry
    double entry_share;         // time to read one entry, as a fraction of the time to read all weights
    double balance_rows;        // rows that take as long to compute as the weights take to read
    bool balance_is_known;

    double decode_us; // time of a pass with decode_rows decode rows and no prompt rows; 0: not known
    int decode_rows;
    int decode_passes;     // consecutive passes without prompt rows up to now
    int mixed_passes;      // mixed passes since decode_us was measured
    double us_per_work[2]; // without and with decode rows; 0: not known
    double mixed_work_max; // largest work of prompt rows in a mixed pass so far, without reading cached entries
    double sample_us;      // time to sample one row on the host; 0: not known
    double saved_work;     // budget saved by a prompt that skipped a pass

    // The pass being composed.
    int decodes;
    double budget, work; // left for prompt rows; work of the prompt rows in it
    double row_budget;   // left for prompt rows, reading not counted; INFINITY without decodes
    double row_work_sum; // work of the prompt rows in it, reading not counted
    bool is_first;       // no prompt has rows in it yet
    int sampled;         // its rows that the host samples
};

void pace_init(struct pace *p, const struct model_config *config, int64_t target_us);

// Whether a pass with `decodes` decode rows gets no prompt rows, because its time is to be measured.
bool pace_measures_decodes(const struct pace *p, int decodes);

// Begins a pass with `decodes` decode rows.
void pace_pass_begin(struct pace *p, int decodes);

// How many of a prompt's next rows, at most `rows_max`, the pass gets behind `entries` cached entries. They are
// deducted from the budget. `whole`: rows_max completes the prompt, and no earlier pass contained a part of it.
int pace_grant_rows(struct pace *p, int entries, int rows_max, bool whole);

// How many draft rows, at most `rows`, the pass gets behind the prompt that it completes with `entries` entries.
int pace_grant_draft_rows(struct pace *p, int entries, int rows);

// Whether pace_grant_rows() would grant all `rows`.
bool pace_would_grant(const struct pace *p, int entries, int rows, bool whole);

// Whether pace_grant_rows() may still grant rows to a prompt without cached entries.
bool pace_has_budget(const struct pace *p, bool whole);

// Withholds half of the budget from the prompts that ask until pace_release_half(). Returns the amount to release.
double pace_reserve_half(struct pace *p);
void pace_release_half(struct pace *p, double reserved);

// How many rows of a pass the host may sample beside other sequences, at least 1; INT_MAX: not limited.
int pace_sampled_max(const struct pace *p);

// Counts a row that the host will sample, in the pass being composed or, before pace_pass_begin(), the next one.
void pace_add_sampled(struct pace *p);

// The host has sampled the counted rows in `us`. Call it before pace_pass_end().
void pace_sampling_end(struct pace *p, int64_t us);

// Ends the pass, which took `us` without the counted rows' sampling. Not for a pass of decode rows and draft rows
// alone: its time is neither that of decodes nor that of prompt rows.
void pace_pass_end(struct pace *p, int64_t us);
