// SPDX-License-Identifier: Apache-2.0
// Removes dead ends from the objects of a JSON schema. An object's next member may have a name of "properties", a name
// that a pattern of "patternProperties" matches, or another name. llguidance takes the names of "properties" and
// "required" out of the other two sets. If nothing is left of a set, it still allows the comma before such a member,
// and no token may follow that comma (guidance-ai/llguidance issue 265).
#pragma once

#include <jansson.h>
#include <stdbool.h>

// Returns true if an object that is valid against the schema can have a member. `schema` is a whole document.
typedef bool member_possible_fn(void *arg, const json_t *schema);

// Removes patterns that match only names of "properties" and "required". The schemas of these names get the pattern's
// schema as well. Sets "additionalProperties" to false where no other name is left. The valid answers stay the same.
// Returns true if the schema has changed. Calls `possible` at most once for each pattern, object and such name, and at
// most 256 times; further objects stay as they are.
bool member_names_settle(json_t *schema, member_possible_fn *possible, void *arg);
