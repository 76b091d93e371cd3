// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of tokenizer, text stream and chat: fixtures, variants in scratch folders, random numbers.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/text/tokenizer.h"

// Returns a path under tests/data/tokenizers. The caller frees it.
char *fixture_path(const char *name);

// Read a whole file, a JSON file, or the lines of a JSON Lines file as one array. The test fails if it cannot be read.
char *file_read(const char *path, size_t *size_p);
json_t *json_read(const char *path);
json_t *json_lines_read(const char *path);

// Creates a scratch model folder with these texts (NULL: no such file) as tokenizer.json and tokenizer_config.json.
// Returns its path. scratch_remove() deletes the folder and frees the path.
char *scratch_create(const char *tokenizer, const char *config);
void scratch_write(const char *dir, const char *name, const char *text);
void scratch_remove(char *dir);

// Returns fixture `base` with the members of `change` (borrowed, may be NULL) replaced. "model.x" is a member of the
// model.
json_t *fixture_changed(const char *base, json_t *change);

// Opens a variant of a fixture. Both texts are JSON, or NULL. The test fails if it does not open.
struct tokenizer *open_variant(const char *base, const char *change, const char *config);
struct tokenizer *open_dir(const char *dir);

// Returns the next number of splitmix64, which is the same on every machine.
uint64_t random_next(uint64_t *state);
