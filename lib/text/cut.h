// SPDX-License-Identifier: Apache-2.0
// Divides a text into units, which are kept or dropped as a whole, and tells which bytes remain if some are dropped.
//
//   prose   a unit is a sentence or a line. A unit of less than 32 bytes is joined with the next one.
//   code    a unit is a run of lines that ends with a blank line, or a fenced block of at most 1,024 bytes. Text counts
//           as code inside a fence, or if half of its lines are indented or end with one of { } ;
//   JSON    a unit is an element of the largest list. A fenced block that is JSON is one unit.
//
// The rest is well-formed UTF-8. A fence is kept with any part of its block, so fences stay in pairs. JSON stays
// JSON. Pure functions; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/text/tokenizer.h"

enum cut_kind { CUT_PROSE, CUT_CODE, CUT_JSON };

struct cut_unit {
    struct text_range range;
    // Number of the block that the unit belongs to, or 0. A block is a fenced block, a line of several sentences, or a
    // list of JSON.
    int block;
    bool fixed; // the unit is always kept
    bool frame; // the unit is kept if another unit of its block is kept: a fence, or the end of a line
    // Number of last bytes that are dropped if no later unit of the block is kept: the comma after an element of JSON.
    size_t trim;
};

struct cut_units {
    struct cut_unit *units; // [n] ascending; together they are the whole text; owned
    int n, capacity;
    int n_blocks;
    enum cut_kind kind; // kind of the largest part of the text
};

// Divides `text` [n], which is UTF-8. Takes O(n) time.
struct cut_units cut_units_create(const char *text, size_t n);
// Makes one unit of the whole text.
struct cut_units cut_units_whole(size_t n);
void cut_units_free(struct cut_units *units);

// Finds the bytes that remain of the text. `keep` [units->n] says which units are kept, and receives true for the fixed
// units and the frames. Writes ascending ranges with gaps between them to `ranges` [units->n]. Returns their number.
int cut_kept(const struct cut_units *units, bool *keep, struct text_range *ranges);
