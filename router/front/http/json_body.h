// SPDX-License-Identifier: Apache-2.0
// Reads the JSON body of a client's request with tables. The row of a field has its type, and the offset where its
// value is stored. If a field is absent or null, the stored value does not change. Unknown fields are ignored. Any
// thread.
//
// Functions return INVALID on failure; json_unsupported_check() returns UNSUPPORTED. status_message() starts with the
// field's name.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

// Parses an object. Refuses duplicate keys. Refuses too many values, because a parsed value takes several times its
// bytes in memory. U+0000 is allowed in strings. The caller owns the object (json_decref).
enum status json_body_parse(const char *bytes, size_t size, json_t **body_p);

// The set of an object's names, as bits of their first two characters. A body has few of the hundred names that the
// tables have, and a look at the set costs less than a look-up in the object.
typedef uint64_t json_names;
json_names json_names_of(const json_t *object); // any value; not an object: no names
static inline json_names json_names_bit(const char *name)
{
    return UINT64_C(1) << ((unsigned char)name[0] * 5 + (*name ? (unsigned char)name[1] : 0)) % 64;
}
// Like json_object_get(). `names` is the set of the object's names.
static inline json_t *json_names_get(json_names names, const json_t *object, const char *name)
{
    return names & json_names_bit(name) ? json_object_get(object, name) : NULL;
}

struct json_field {
    const char *name; // NULL ends a table
    enum json_field_type {
        JSON_FIELD_BOOL,   // bool
        JSON_FIELD_INT,    // int64_t, min..max
        JSON_FIELD_NAME,   // const char *: a string without U+0000. NAME and the next types borrow from the body
        JSON_FIELD_LIST,   // const json_t *
        JSON_FIELD_OBJECT, // const json_t *
        JSON_FIELD_ANY,    // const json_t *
    } type;
    size_t offset;    // offset of the value in the struct of values
    int64_t min, max; // range of a JSON_FIELD_INT
};
enum status json_fields_read(const json_t *object, const struct json_field *fields, void *values);

// A parameter that would change the answer but is not supported. It is refused unless its value is `harmless`.
struct json_unsupported {
    const char *name;     // NULL ends a table
    const char *harmless; // JSON of the value that has no effect; NULL: every value is refused
    const char *remedy;   // advice in the error message; NULL: "leave it out"
};
enum status json_unsupported_check(const json_t *object, const struct json_unsupported *table);

// Returns true if the reader of a body reads, refuses or ignores the field `name` on purpose (json_unknown.h).
typedef bool json_knows_fn(const char *name);

// Returns true if one of the tables has a row for the name. Each table may be NULL.
bool json_tables_name(const struct json_field *fields, const struct json_unsupported *unsupported, const char *name);

// Returns true if the list [NULL-terminated] has the name.
bool json_list_has(const char *const *names, const char *name);
