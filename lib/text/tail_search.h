// SPDX-License-Identifier: Apache-2.0
// The longest end of one text that another text has, in linear time: the algorithm of Knuth, Morris and Pratt (1977,
// doi 10.1137/0206024) on both texts read backwards. A chat template makes both, so their sizes can be hostile.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TAIL_SEARCH_BYTES = 256 }; // longest end that is looked for

struct tail_search {
    const char *end; // behind the last byte that is looked for; borrowed
    size_t n;
    size_t border[TAIL_SEARCH_BYTES]; // of the last i + 1 bytes: longest shorter text that they begin and end with
    uint64_t steps;                   // comparisons so far: at most two per byte
};

// Looks for ends of `wanted` [n], which must stay.
void tail_search_init(struct tail_search *search, const char *wanted, size_t n);
// Where the last place of the longest end in `text` ends, in bytes; n: the text has not even the last byte.
size_t tail_search_run(struct tail_search *search, const char *text, size_t n);
