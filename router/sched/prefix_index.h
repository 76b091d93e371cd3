// SPDX-License-Identifier: Apache-2.0
// What a node's prefix cache is likely to hold: the prompt blocks of the requests that were dispatched to it. Requests
// with a shared prefix go to the node that has it, and a bin counts only the rows that are left to compute (global
// prefix sharing: BatchLLM, arXiv 2412.03594).
//
// The index is bounded like the cache itself, which the router does not see, and evicts the chain used longest ago from
// its end. Not thread-safe.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/sched/prefix_chain.h"

struct prefix_index;

struct prefix_index *prefix_index_create(int blocks); // its capacity, at most PREFIX_BLOCKS_MAX
void prefix_index_free(struct prefix_index *index);   // NULL is fine

int prefix_index_match(const struct prefix_index *index, const uint64_t *chain, int n); // leading blocks in the index
void prefix_index_add(struct prefix_index *index, const uint64_t *chain, int n);
