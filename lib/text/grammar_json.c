// SPDX-License-Identifier: Apache-2.0
#include "lib/text/grammar_json.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "lib/text/schema_close.h"

static enum status set_text(const char *name, enum grammar_kind kind, const json_t *value, struct grammar_spec *spec)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return json_refuse_type(name, "a string without U+0000");
    *spec = grammar_spec_of(kind, mem_string(json_string_value(value)));
    return STATUS_OK;
}

// Sets a schema: an object, true or false, or, as in vLLM, their JSON text. `strict` closes its objects.
static enum status set_schema(const char *name, const json_t *value, bool strict, struct grammar_spec *spec)
{
    if (json_is_string(value)) return set_text(name, GRAMMAR_JSON_SCHEMA, value, spec);
    if (!json_is_object(value) && !json_is_boolean(value)) return json_refuse_type(name, "a JSON schema");
    json_t *schema = json_deep_copy(value);
    if (strict) schema_close(schema);
    *spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY));
    json_decref(schema);
    return STATUS_OK;
}

static enum status set_choice(const char *name, const json_t *list, struct grammar_spec *spec)
{
    static const char expected[] = "a list of strings that are not empty";
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(list, i);
        size_t bytes = json_string_length(text);
        if (!bytes || strlen(json_string_value(text)) != bytes) return json_refuse_type(name, expected);
    }
    if (!n) return json_refuse_type(name, expected);
    const char **texts = mem_alloc_array(n, sizeof *texts);
    for (size_t i = 0; i < n; i++)
        texts[i] = json_string_value(json_array_get(list, i));
    *spec = grammar_spec_choice(texts, n);
    free(texts);
    return STATUS_OK;
}

static enum status read_member(const char *member, const char *name, const json_t *value, struct grammar_spec *spec)
{
    if (strcmp(member, "json") == 0) return set_schema(name, value, false, spec);
    if (strcmp(member, "choice") == 0) return set_choice(name, value, spec);
    return set_text(name, strcmp(member, "regex") == 0 ? GRAMMAR_REGEX : GRAMMAR_LARK, value, spec);
}

static enum status read_response_format(const json_t *format, struct grammar_spec *spec)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type) return json_refuse_type("response_format", "an object with a type");
    if (strcmp(type, "text") == 0) return STATUS_OK;
    if (strcmp(type, "json_object") == 0) {
        *spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, mem_string("{\"type\":\"object\"}"));
        return STATUS_OK;
    }
    if (strcmp(type, "json_schema") != 0)
        return status_fail(STATUS_INVALID, "response_format.type '%.40s': must be text, json_object or json_schema",
                           type);
    const json_t *given = json_object_get(format, "json_schema"), *schema = json_object_get(given, "schema");
    if (!json_is_object(schema)) return json_refuse_type("response_format.json_schema.schema", "an object");
    const json_t *strict = json_object_get(given, "strict");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return json_refuse_type("response_format.json_schema.strict", "true or false");
    return set_schema("response_format.json_schema.schema", schema, json_is_true(strict), spec);
}

// Moves `more`, the grammar of the field `name`, to `spec`. *field_p is the name of the first field with a grammar, or
// NULL if there was none. A second field must have the same grammar: some clients send it under the old and the new
// name.
static enum status take_grammar(const char *name, struct grammar_spec *more, const char **field_p,
                                struct grammar_spec *spec)
{
    bool other = *field_p && !grammar_specs_equal(more, spec);
    if (!*field_p) {
        *spec = *more;
        *field_p = name;
    } else {
        grammar_spec_free(more);
    }
    return other ? status_fail(STATUS_INVALID, "%s: not allowed together with %s, which differs", name, *field_p)
                 : STATUS_OK;
}

// The fields with a grammar, and the members of structured_outputs with the same meaning.
static const char *const names[] = {"guided_json", "guided_regex", "guided_grammar", "guided_choice"};
static const char *const members[] = {"json", "regex", "grammar", "choice"};
static const char nested_name[] = "structured_outputs", format_name[] = "response_format";

bool grammar_json_knows(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return true;
    return strcmp(nested_name, name) == 0 || strcmp(format_name, name) == 0;
}

static enum status read_fields(const json_t *body, struct grammar_spec *spec)
{
    const json_t *nested = json_object_get(body, nested_name);
    const char *field = NULL;
    if (nested && !json_is_null(nested) && !json_is_object(nested)) return json_refuse_type(nested_name, "an object");
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *values[] = {json_object_get(body, names[i]), json_object_get(nested, members[i])};
        const char *places[] = {names[i], nested_name};
        for (int v = 0; v < 2; v++) {
            if (!values[v] || json_is_null(values[v])) continue;
            struct grammar_spec of_field = {0};
            TRY(read_member(members[i], places[v], values[v], &of_field));
            TRY(take_grammar(places[v], &of_field, &field, spec));
        }
    }
    const json_t *format = json_object_get(body, format_name);
    if (!format || json_is_null(format)) return STATUS_OK;
    struct grammar_spec of_format = {0};
    TRY(read_response_format(format, &of_format));
    if (of_format.kind == GRAMMAR_NONE) return STATUS_OK;
    return take_grammar(format_name, &of_format, &field, spec);
}

enum status grammar_from_json(const json_t *body, struct grammar_spec *spec)
{
    *spec = (struct grammar_spec){0};
    enum status status = read_fields(body, spec);
    if (status != STATUS_OK) grammar_spec_free(spec);
    return status;
}
