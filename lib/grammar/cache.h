// SPDX-License-Identifier: Apache-2.0
// Grammars that were compiled lately and found valid, so that the same schema with every request is compiled once. They
// are found by kind and whole text; beyond the bounds the one that was not asked for the longest is forgotten. No
// matchers are kept: what a client learns from the cache is how long a request took.
//
// Any thread.
#pragma once

#include "lib/text/grammar_spec.h"

enum { GRAMMAR_CACHE_ENTRIES = 64, GRAMMAR_CACHE_BYTES = 1 << 20 }; // of their texts

struct grammar_cache;

struct grammar_cache *grammar_cache_create(void);
void grammar_cache_free(struct grammar_cache *cache); // NULL is fine
bool grammar_cache_has(struct grammar_cache *cache, const struct grammar_spec *spec);
// Copies the spec, which must have been checked.
void grammar_cache_add(struct grammar_cache *cache, const struct grammar_spec *spec);
