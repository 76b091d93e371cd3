// SPDX-License-Identifier: Apache-2.0
// Finds schemas that no finite answer matches, because they require themselves: {"$ref": "#"}, or an object with a
// required member that requires the object again. llguidance accepts such a schema, and an answer would go on until
// max_tokens.
#pragma once

#include <jansson.h>

// Returns a reference ("$ref") in the document `root` that leads to such a schema, or NULL if there is none. Borrowed
// from `root`. Takes time in proportion to the size of the document.
const char *schema_endless_ref(json_t *root);
