// SPDX-License-Identifier: Apache-2.0
// The cost model of a node, learned from the passes that the node measures at its start and reports later:
//
//     us = fixed + row * rows + pair * pairs
//
// `rows` counts the tokens fed to the model, including one for each decoding sequence. `pairs` counts the attention
// pairs: a row and a KV entry that the row attends to. No coefficient is negative. Plain data: no allocation, no clock.
// One thread.
//
// The fit minimises the squares of the relative errors, so short passes count as much as long ones. If times vary, the
// fit follows their mean. Passes are grouped by size: the power of two of their rows. Each size has its own sums, and
// only passes of this size decay them, so a thousand decodes do not wash out one long prefill. If a node becomes faster
// or slower, the model follows within some dozens of passes of a size. A size that did not occur for ten minutes is
// forgotten. The node may have changed since, and a decision that depends on old costs (such as not to use the node)
// must not last for ever.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { COST_SIZES = 21 }; // 2^20 rows: more than a pass may have

struct cost_model {
    // Sums over the passes of one size. With the terms t = (1, rows, pairs) / expected time: the products t[i] * t[j],
    // and t[i] * measured time / expected time.
    struct cost_moments {
        double products[6]; // upper triangle, by rows
        double sums[3];
        int64_t max_rows;   // most rows of one pass; 0: no pass of this size is known
        int64_t learned_us; // time of the last pass
    } moments[COST_SIZES];
    double fixed_us, row_us, pair_us;
    int passes;               // number of passes learned, at most INT_MAX
    double predicted, errors; // decayed sums over predicted passes: number of passes; squares of their relative errors
    int64_t done_rows, done_us; // rows of the longest prompt computed lately; time at which that prompt was computed
};

// Work to be computed.
struct cost_work {
    double rows, pairs; // attention pairs
};

// The share of a node's time that prompts get while other sequences decode. Worker groups limit this share
// (worker/pace.h).
struct cost_share {
    // decayed sums over passes with prompts and decodes: time of the prompts; time of the passes
    double prompt_us, pass_us;
};
void cost_share_learn(struct cost_share *s, double prompt_us, double pass_us);
double cost_share_of(const struct cost_share *s); // 0 to 1; 1 while the share is unknown

// Learns from one pass. Ignores a report that cannot be true (no rows, no time, fewer pairs than rows). A report far
// off the expected time weighs less.
void cost_learn(struct cost_model *m, int64_t rows, int64_t pairs, int64_t pass_us, int64_t now_us);

// Learns from passes of one sequence that a node measured while it started, until the model is known. A pass after
// cached entries counts as the end of a prompt of that length.
struct cost_pass {
    int64_t rows, pairs, us;
};
void cost_begin(struct cost_model *m, const struct cost_pass *passes, int n, int64_t now_us);

// Call when all rows of a prompt have been computed, in passes of any size.
void cost_prompt_done(struct cost_model *m, int64_t rows, int64_t now_us);

// Returns true if the model is valid for a pass or prompt of `rows` rows. It must have learned a few passes, and lately
// a pass or prompt with at least a quarter of `rows`.
bool cost_knows(const struct cost_model *m, int64_t rows, int64_t now_us);

// Returns the root mean square of the relative errors of the model's predictions, or 0 if it is unknown.
double cost_noise(const struct cost_model *m);

int cost_size(int64_t rows); // floor(log2(rows)), at most COST_SIZES - 1

double cost_pass_us(const struct cost_model *m, double passes, double rows, double pairs);

double cost_pairs(double rows, double cached); // attention pairs of `rows` rows of one sequence after `cached` entries
