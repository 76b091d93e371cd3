// SPDX-License-Identifier: Apache-2.0
// What a pass costs a node, learned from the passes it reports:
//
//     us = fixed + row * rows + pair * pairs
//
// rows: tokens fed, those of running decodes included. pairs: of a row and an entry of the cache it attends to, the
// attention term. All three are at least zero. A value: no allocation, no clock. One thread.
//
// Least squares of the relative error, so that short passes count as much as long ones. What was seen is kept apart by
// the size of the pass (powers of two of its rows) and forgotten apart: a thousand decodes do not wash out the one long
// prefill, and a node that becomes faster or slower is followed within some dozens of passes of that size. A size that
// did not come for ten minutes is forgotten altogether: the node may have become another one, and nothing that was
// decided by its old costs (not to use it, say) can stand for ever.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COST_SIZES = 21 }; // 2^20 rows: more than a pass may have

struct cost_model {
    // Sums over passes of this size of the products of (1, rows, pairs) / us with each other, and with 1.
    struct cost_moments {
        double products[6]; // upper triangle, by rows
        double sums[3];
        int64_t most_rows;  // of one pass; 0: none of this size is known
        int64_t learned_us; // when last
    } moments[COST_SIZES];
    double fixed_us, row_us, pair_us;
    int passes;                 // learned from, at most INT_MAX
    int64_t done_rows, done_us; // of the longest prompt computed lately, and when
};

// What is to be computed.
struct cost_work {
    double rows, pairs;
};

// A report that cannot be true (no rows, no time, fewer pairs than rows) is left out; one that is far off what is known
// counts as less far off.
void cost_learn(struct cost_model *m, int64_t rows, int64_t pairs, int64_t pass_us, int64_t now_us);

// All rows of a prompt have been computed: in however small passes, they are what such prompts come in.
void cost_prompt_done(struct cost_model *m, int64_t rows, int64_t now_us);

// Whether it can be asked about so many rows: some passes have been seen, one pass or prompt of a quarter of that at
// least, none so long ago that it is forgotten.
bool cost_knows(const struct cost_model *m, int64_t rows, int64_t now_us);

double cost_pass_us(const struct cost_model *m, double passes, double rows, double pairs);

// Pairs of `rows` rows of one sequence after `cached` entries.
double cost_pairs(double rows, double cached);
