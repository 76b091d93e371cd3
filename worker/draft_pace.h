// SPDX-License-Identifier: Apache-2.0
// Chooses how many draft rows a decoding sequence gets in a pass: the number that yields the most tokens in a second.
//
// A draft token is accepted with a probability p, if the draft tokens before it are; p is measured over the latest
// drafts. So a pass with d draft rows for each of its sequences yields (1 - p^(d+1)) / (1 - p) tokens for each (arXiv
// 2211.17192). It takes the time of a pass without draft rows and the time of the draft rows. Both times are measured
// for each size of the batch, in powers of two: few rows are bound by reading weights, so that draft rows cost little,
// and many are bound by arithmetic. No table of lengths by batch size is needed, and a loaded group has the length 0.
//
// A length is changed only for one that is predicted to be better by a twentieth, so that it does not follow noise.
//
// Drafts come from speculators or from prompt lookup (prompt_lookup.h). If a sequence could have either, the group
// verifies the kind that was accepted more often lately.
//
// A speculator may share its machine with the group. Its drafting then slows down the passes that verify drafts,
// whatever their rows. So phases with and without drafts of speculators alternate for each size of the batch, and the
// tokens that a sequence gets in a second decide how long the next phase is. Drafts that gain nothing are tried for at
// most 32 passes after 256, and each time after twice as many, up to 8,192. Prompt lookup costs the group alone, and
// its drafts are verified in both phases.
//
// Decides when drafts are verified, never a token. Plain data without a clock; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_BATCHES = 12 }; // 1, 2 to 3, 4 to 7 ... sequences

// A phase with drafts of speculators, or one in which speculators get no tokens to go on from.
struct draft_phase {
    bool is_off;
    int passes, length; // passes of the phase so far, and in all; 0: 32
    double us, tokens;  // of passes of a sequence, without the first passes, which the previous phase still affects
    double rate[2];     // tokens in a microsecond in the latest phase with, without drafts; 0: not known
    int pause;          // passes of the next long phase without drafts; 0: the shortest
};

struct draft_cost {
    struct draft_phase phase;
    struct draft_times {
        double pass_us, row_us; // time of a pass without draft rows, and of one draft row; 0: not known
        int length;
    } times[2]; // in phases with, without drafts of speculators
};

struct draft_record {
    double accepted, refused; // lately
};

struct draft_pace {
    double accepted, refused; // lately, drafts of both kinds
    struct draft_record speculated, lookup;
    struct draft_cost costs[DRAFT_BATCHES];
};

void draft_pace_init(struct draft_pace *p);

// Returns the draft rows for each of `sequences` decoding sequences in the next pass: up to `most`, the length of the
// longest draft.
int draft_pace_rows(struct draft_pace *p, int sequences, int most);

// Returns how many draft rows (up to `most`) a complete prompt gets while `decodes` sequences decode: as many as save
// more time than they take. A draft row saves the time of the tokens that it is expected to yield, at the time per
// token of a decoding sequence. Returns `most` while no sequence decodes or times are not known.
int draft_pace_first_rows(const struct draft_pace *p, int decodes, int most);

// Returns the length of speculators' drafts that `sequences` decoding sequences can use now.
int draft_pace_length(const struct draft_pace *p, int sequences);

// Returns true if a draft from prompt lookup is at least as likely to be accepted as one of a speculator.
bool draft_pace_prefers_lookup(const struct draft_pace *p);

// Counts a sequence's draft in a pass: `accepted` of the `verified` draft tokens were accepted.
void draft_pace_verified(struct draft_pace *p, bool from_lookup, int verified, int accepted);

// Learns from a pass without prompt rows that took `us` and yielded `tokens`.
void draft_pace_pass_end(struct draft_pace *p, int sequences, int draft_rows, int tokens, int64_t us);
