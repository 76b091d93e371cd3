// SPDX-License-Identifier: Apache-2.0
// Finds the longest suffix of one text that occurs in another text, in linear time: the algorithm of Knuth, Morris and
// Pratt (1977, doi 10.1137/0206024) on both texts read backwards. A chat template makes both texts, so both can be
// hostile.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TAIL_SEARCH_BYTES = 256 }; // longest suffix that is searched for

struct tail_search {
    const char *end; // end of the wanted bytes; borrowed
    size_t n;
    // border[i]: size of the longest shorter text that is both a prefix and a suffix of the last i + 1 bytes
    size_t border[TAIL_SEARCH_BYTES];
    uint64_t steps; // number of comparisons so far: at most two per byte
};

// Prepares to search for suffixes of `wanted` [n], which is borrowed.
void tail_search_init(struct tail_search *search, const char *wanted, size_t n);
// Finds the longest suffix of `wanted` that occurs in `text` [n]. Returns the byte offset at which its last occurrence
// ends, or n if not even the last byte of `wanted` occurs.
size_t tail_search_run(struct tail_search *search, const char *text, size_t n);
