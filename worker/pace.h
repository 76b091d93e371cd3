// SPDX-License-Identifier: Apache-2.0
// Pacing limits the prompt rows of a pass. While sequences decode, a long prompt is cut into chunks so small that
// running sequences wait little longer for their next token (stall-free batching, arXiv 2403.02310). In the paper the
// chunk size is a constant; here it follows the measured time of passes. While no sequence decodes, a chunk that does
// not complete its prompt is limited to half a second, because a request that arrives meanwhile waits for the pass.
//
// The reference is the time of a pass with decode rows only. From time to time, two passes without prompt rows measure
// this time again. Only the second pass counts: the first pass runs with CPU or GPU caches that prompts have filled. If
// the number of decode rows changes between measurements, each additional or missing row counts like a prompt row.
//
// The time that prompt rows add to a pass is modelled as proportional to their work. This work has three parts: the
// rows, the attention of the rows to earlier entries, and, once per prompt and pass, reading the prompt's cached
// entries at the speed of reading weights. The factor is learned from every pass. In passes with decodes, the work of
// the rows without reading is at most twice the largest such work so far. So chunks shrink as a prompt grows, while a
// short prompt next to a long prompt keeps large chunks. If a prompt's cached entries take longer to read than a pass
// may last, the prompt skips passes and saves their budget until the budget is enough. Then few passes are long, and
// the mean time of passes stays within the target.
//
// Sampling on the host is part of a pass, too. The target allows some time in addition to the decode rows. While other
// sequences run, sampling on the host may use at most half of this additional time, but may always sample one row per
// pass. Prompt rows get the rest. So requests with penalties or log-probabilities lengthen a pass by at most one
// sampled row beyond the target, once decode rows and sampling are measured.
//
// struct pace holds what is learned from passes; pace_budget.h limits the rows of one pass. Pacing decides when rows
// are computed, never their result. Plain data without a clock; one thread.
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
    double row_work, pair_work; // work of one prompt row, and of its attention to one entry
    double entry_share;         // time to read one entry, as a fraction of the time to read all weights
    double balance_rows;        // rows that take as long to compute as the weights take to read
    bool balance_is_known;

    double decode_us; // time of a pass with decode_rows decode rows and no prompt rows; 0: not known
    int decode_rows;
    int decode_passes;     // consecutive passes without prompt rows up to now
    int mixed_passes;      // passes with decode and prompt rows since decode_us was measured
    double us_per_work[2]; // in passes without decode rows [0] and with decode rows [1]; 0: not known
    // Largest work so far of the prompt rows of a pass with decodes; reading cached entries does not count.
    double mixed_work_max;
    double sample_us;  // time to sample one row on the host; 0: not known
    double saved_work; // budget saved by a prompt that skipped a pass
};

// The rows of one pass, as pacing counts them.
struct pace_rows {
    int decodes;     // sequences with a decode row
    int sampled;     // rows that the host samples
    double work;     // work of the prompt rows and their draft rows, including reading of cached entries
    double row_work; // the same work without reading
};

void pace_init(struct pace *p, const struct model_config *config, int64_t target_us);

// Returns true if a pass with `decodes` decode rows must have no prompt rows, in order to measure the time of the
// decode rows.
bool pace_measures_decodes(const struct pace *p, int decodes);

// Returns the time in microseconds that prompt rows may add to a pass with `decodes` decode rows. The host samples
// `sampled` rows of the pass.
double pace_prompt_us(const struct pace *p, int decodes, int sampled);

// Returns how many rows of a pass the host may sample while other sequences run. The result is at least 1, and INT_MAX
// if there is no limit.
int pace_sampled_max(const struct pace *p);

// Learns that the host took `us` to sample the rows of a pass. Call it before pace_pass_end().
void pace_sampling_end(struct pace *p, const struct pace_rows *rows, int64_t us);

// Learns that the pass took `us` without sampling on the host. Do not call it for a pass that has draft rows and no
// prompt rows: its time says nothing about decode rows or prompt rows alone.
void pace_pass_end(struct pace *p, const struct pace_rows *rows, int64_t us);
