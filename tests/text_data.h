// SPDX-License-Identifier: Apache-2.0
// What the tests of tokenizer, streams and chat share: fixtures, variants of them in scratch folders, random numbers.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "model/tokenizer.h"

// Path under tests/data/tokenizers. Caller frees.
char *fixture_path(const char *name);

// A whole file; a JSON file; every line of a JSON Lines file as one array. The test fails when it cannot be read.
char *file_read(const char *path, size_t *size_p);
json_t *json_read(const char *path);
json_t *json_lines_read(const char *path);

// A scratch model folder: tokenizer.json is `tokenizer` (text, or NULL: none), tokenizer_config.json is `config` (or
// NULL). Returns its path; scratch_remove() deletes it and frees the path.
char *scratch_create(const char *tokenizer, const char *config);
void scratch_write(const char *dir, const char *name, const char *text);
void scratch_remove(char *dir);

// Fixture `base` with the members of `change` put in place ("model.x": a member of the model), borrowed; may be NULL.
json_t *fixture_changed(const char *base, json_t *change);

// Opens a variant of a fixture; both texts are JSON, or NULL. The test fails when it does not open.
struct tokenizer *open_variant(const char *base, const char *change, const char *config);
struct tokenizer *open_dir(const char *dir);

// splitmix64: the same numbers everywhere.
uint64_t random_next(uint64_t *state);
