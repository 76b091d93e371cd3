// SPDX-License-Identifier: Apache-2.0
// Chooses how many draft rows a decoding sequence gets in a pass: the number that yields the most tokens per second.
//
// A draft token whose preceding draft tokens are all accepted is accepted with the probability p, measured over the
// latest drafts. So a pass with d draft rows for each of its sequences yields (1 - p^(d+1)) / (1 - p) tokens for each
// sequence (arXiv 2211.17192). The pass takes the time of a pass without draft rows, plus the time of the draft rows.
// Both times are measured for each size of the batch, in powers of two. A pass of few rows is bound by reading weights,
// so draft rows cost little. A pass of many rows is bound by arithmetic, so the length becomes 0 in a loaded group. No
// table of lengths by batch size is needed.
//
// The length changes only if another length is predicted to yield a twentieth more tokens per second. So the length
// does not follow noise.
//
// Drafts come from speculators or from prompt lookup (prompt_lookup.h). If a sequence could get both kinds of draft,
// the group verifies the kind that was accepted more often lately.
//
// A speculator may share its machine with the group. Its drafting then slows down all passes of the group. So phases
// with and without drafts of speculators alternate for each size of the batch. The tokens per second of a sequence in
// each phase decide how long the next phase is. If drafts gain nothing, a phase with drafts lasts at most 32 passes.
// The phases without drafts then last 256 passes, doubled each time up to 8,192. Prompt lookup uses no time of
// speculators, and its drafts are verified in both phases.
//
// These decisions change when drafts are verified, never which tokens are generated. Plain data without a clock; one
// thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_BATCHES = 12 }; // 1, 2 to 3, 4 to 7 ... sequences

// A phase with or without drafts of speculators. In a phase without drafts, speculators get no generated tokens, so
// they do not draft.
struct draft_phase {
    bool is_off;
    int passes, length; // passes of the phase so far; number of passes after which the phase ends (0 means 32)
    // Sums of pass times and of tokens per sequence. The first passes do not count: the previous phase still affects
    // them.
    double us, tokens;
    // Tokens per sequence and microsecond in the latest phase with drafts [0] and without drafts [1]; 0: not known.
    double rate[2];
    // Passes of the latest long phase without drafts; the next such phase has twice as many. 0: the next such phase is
    // the shortest.
    int pause;
};

struct draft_cost {
    struct draft_phase phase;
    struct draft_times {
        double pass_us, row_us; // time of a pass without draft rows, and of one draft row; 0: not known
        int length;
    } times[2]; // in phases with drafts of speculators [0] and without [1]
};

struct draft_record {
    // Accepted draft tokens, and drafts with a refused token. The counts decay, so that recent drafts weigh more.
    double accepted, refused;
};

struct draft_pace {
    double accepted, refused; // the same counts over drafts of both kinds
    struct draft_record speculated, lookup;
    struct draft_cost costs[DRAFT_BATCHES];
};

void draft_pace_init(struct draft_pace *p);

// Returns how many draft rows each of `sequences` decoding sequences gets in the next pass. `most` is the length of the
// longest draft, which limits the result.
int draft_pace_rows(struct draft_pace *p, int sequences, int most);

// Returns how many draft rows (up to `most`) follow a prompt in the pass that completes the prompt, while `decodes`
// sequences decode. Each draft row must save more time than it takes. It saves the time in which a decoding sequence
// would get the tokens that the row is expected to yield. Returns `most` while no sequence decodes or times are not
// known.
int draft_pace_first_rows(const struct draft_pace *p, int decodes, int most);

// Returns how many draft tokens from speculators each of `sequences` decoding sequences can use now.
int draft_pace_length(const struct draft_pace *p, int sequences);

// Returns true if drafts from prompt lookup are at least as likely to be accepted as drafts from speculators.
bool draft_pace_prefers_lookup(const struct draft_pace *p);

// Counts a sequence's draft in a pass: `accepted` of the `verified` draft tokens were accepted.
void draft_pace_verified(struct draft_pace *p, bool from_lookup, int verified, int accepted);

// Learns from a pass without prompt rows that took `us` and yielded `tokens`.
void draft_pace_pass_end(struct draft_pace *p, int sequences, int draft_rows, int tokens, int64_t us);
