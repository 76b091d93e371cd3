// SPDX-License-Identifier: Apache-2.0
// Finds the demo models, which are installed with the programs.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Returns the absolute path of a file or folder of the demo, such as "main", or NULL if it is not installed. The caller
// frees it.
char *demo_path(const char *name);

// Returns true if `fingerprint` is the fingerprint of the demo's main model.
bool demo_has_fingerprint(uint64_t fingerprint);
