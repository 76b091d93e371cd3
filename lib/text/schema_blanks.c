// SPDX-License-Identifier: Apache-2.0
#include "lib/text/schema_blanks.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/mem.h"

// The rule is inserted into the text, because writing the parsed schema again could change its numbers. It is the last
// member, because llguidance removes it by moving the last member into its place: anywhere else, this would change the
// order of the schema's members, and with it the order of the answer's.
char *schema_bound_blanks(const char *schema)
{
    static const char rule[] = "\"x-guidance\":{\"whitespace_pattern\":\"[ ]|\\n[ ]{0,32}\"}}";
    const size_t flags = JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL; // as llguidance reads JSON
    json_t *root = json_loads(schema, flags, NULL);
    bool add = json_is_object(root) && !json_object_get(root, "x-guidance"), is_empty = json_object_size(root) == 0;
    json_decref(root);
    if (!add) return mem_string(schema);
    return mem_format("%.*s%s%s", (int)(strrchr(schema, '}') - schema), schema, is_empty ? "" : ",", rule);
}
