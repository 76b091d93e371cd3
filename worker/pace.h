// SPDX-License-Identifier: Apache-2.0
// How much of a pass prompts may take. While sequences decode, a long prompt is cut into chunks small enough that
// nobody waits much longer for his next token than he would without it (stall-free batching, arXiv 2403.02310; there
// the chunk is a constant, here it follows what passes were measured to take). While none does, a chunk that brings no
// first token is kept to a fraction of a second: whoever comes meanwhile waits for the end of it.
//
// Passes of decodes alone give the time to compare with; it is measured anew now and then, by two passes that prompts
// stand back from: the first finds in the caches what prompts left there, the second counts. What a prompt adds to it
// is taken to be proportional to its work: rows, attention to all that stands before them and, once however many rows
// it feeds, the reading of its cached entries, which are read as fast as weights are; the factor is learned from every
// pass. So chunks get smaller as a prompt gets longer, but not those of a short one beside it. A prompt whose entries
// take longer to read than a pass may last stands back from passes until what it left of them is enough: few passes are
// longer then, and on the average none.
//
// Decides when something is computed, never what. Plain data, no clock of its own.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

enum {
    PACE_TWICE = 0,   // a pass takes at most twice as long as its decodes alone would
    PACE_FREELY = -1, // prompts take all they can
};

struct pace {
    int64_t target_us;          // of a pass with decodes, or one of the above
    double row_work, pair_work; // of a prompt row, and of its attention to one entry
    double entry_share;         // to read an entry, of the time to read all weights
    double balance;             // rows whose work takes as long as that
    bool balance_is_known;

    double alone_us; // a pass of `alone_decodes` rows and no prompt takes this; 0: not known
    int alone_decodes;
    int alone_run;         // such passes, one after the other up to now
    int mixed;             // passes with both since that was measured
    double us_per_work[2]; // without and beside decodes, which wait for memory; 0: not known
    double most_work;      // of prompts in any pass with both
    double saved;          // work left by a prompt that stood back

    // The pass being made.
    int decodes;
    double work_left, work; // without decodes: left for chunks
    bool first;             // no prompt has rows in it yet
};

void pace_init(struct pace *p, const struct model_config *config, int64_t target_us);

// A pass begins in which so many sequences decode. Then, for each prompt, how many of the next rows, at most `most`,
// it may feed behind `entries` cached ones. `whole`: `most` are all it has, and no part of it was fed before.
void pace_begin(struct pace *p, int decodes);
int pace_take(struct pace *p, int entries, int most, bool whole);

// Whether so many rows behind `entries` cached ones would be given by pace_take() as they are asked for.
bool pace_allows(const struct pace *p, int entries, int rows, bool whole);
// Halves what is left until given back: what goes on between is not to take all.
double pace_withhold_half(struct pace *p);
void pace_give_back(struct pace *p, double withheld);

// Whether pace_take() may still give rows, to a prompt without any cached entry.
bool pace_open(const struct pace *p, bool whole);

void pace_end(struct pace *p, int64_t us); // what the pass took
