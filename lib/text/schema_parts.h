// SPDX-License-Identifier: Apache-2.0
// The schemas inside a JSON schema.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// Calls `visit` for each schema that is directly inside `schema`: in properties, $defs, anyOf, items and so on. `visit`
// may change that schema. Values of const, enum, default and examples are no schemas. Stops at the first failure.
typedef enum status schema_visit_fn(void *arg, json_t *part);
enum status schema_parts_visit(json_t *schema, schema_visit_fn *visit, void *arg);

// Returns the schema that a reference ("$ref") within the document names by a JSON pointer. NULL: there is none.
json_t *schema_ref_find(json_t *root, const char *ref);
