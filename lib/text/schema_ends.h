// SPDX-License-Identifier: Apache-2.0
// Finds schemas that no finite answer matches, because they require themselves: {"$ref": "#"}, or an object with a
// required member that requires the object again. llguidance accepts such a schema, and an answer would go on until
// max_tokens. A schema that requires itself only in a part that an answer can do without is not found.
#pragma once

#include <jansson.h>

// Returns a reference ("$ref") for which no answer matches the document `root`, or NULL if an answer may match.
// Borrowed from `root`. Takes time in proportion to the size of the document.
const char *schema_endless_ref(json_t *root);
