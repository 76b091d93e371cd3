// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_variables.h"

#include <string.h>

#include "lib/text/generation_json.h"

enum { WORD_BYTES_MAX = 32 };

enum status json_variable_check(const char *name, const char *word)
{
    size_t n = strlen(word);
    if (n >= 1 && n <= WORD_BYTES_MAX) return STATUS_OK;
    return json_refuse_type(name, "a word of 1 to 32 bytes, such as low, medium or high");
}

void json_variable_set(json_t *variables, const char *name, json_t *value)
{
    if (json_object_get(variables, name)) {
        json_decref(value);
    } else {
        json_object_set_new(variables, name, value);
    }
}

// Qwen's templates read enable_thinking, DeepSeek's and Granite's read thinking.
void json_variables_set_thinking(json_t *variables, bool on)
{
    json_variable_set(variables, "enable_thinking", json_boolean(on));
    json_variable_set(variables, "thinking", json_boolean(on));
}
