// SPDX-License-Identifier: Apache-2.0
// Remembers grammars that compiled recently and were valid, so that a schema sent with every request is compiled once.
// Grammars are found by kind and whole text. A full cache drops the least recently used grammar. The cache keeps no
// matchers, so all that a client can learn about other clients' grammars is how long its own request takes.
//
// Any thread may call.
#pragma once

#include "lib/text/grammar_spec.h"

enum { GRAMMAR_CACHE_ENTRIES = 64, GRAMMAR_CACHE_BYTES = 4 << 20 }; // limits; BYTES counts all texts

struct grammar_cache;

struct grammar_cache *grammar_cache_create(void);
void grammar_cache_free(struct grammar_cache *cache); // NULL is fine
bool grammar_cache_has(struct grammar_cache *cache, const struct grammar_spec *spec);
// Copies the spec, which must have been checked.
void grammar_cache_add(struct grammar_cache *cache, const struct grammar_spec *spec);
