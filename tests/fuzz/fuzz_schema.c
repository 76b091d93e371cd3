// SPDX-License-Identifier: Apache-2.0
// A byte that decides which members are possible, then the text of a JSON schema. Closing changes nothing but
// "additionalProperties", and a second time nothing. Settled names stay settled, and the questions are objects. A
// schema without references requires itself nowhere, and a copy of a schema has the same endless reference.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/grammar/member_names.h"
#include "lib/text/schema_close.h"
#include "lib/text/schema_ends.h"
#include "tests/fuzz/fuzz.h"

struct oracle {
    unsigned state;
    int n;
};

static bool possible(void *arg, const json_t *schema)
{
    struct oracle *oracle = arg;
    FUZZ_CHECK(json_is_object(json_object_get(schema, "patternProperties")));
    FUZZ_CHECK(++oracle->n <= 256);
    oracle->state = oracle->state * 5 + 3;
    return oracle->state >> 4 & 1;
}

static void check_close(const char *given)
{
    char *text = strdup(given);
    if (schema_text_close(&text) == STATUS_OK) {
        char *again = strdup(text);
        FUZZ_CHECK(schema_text_close(&again) == STATUS_OK);
        FUZZ_CHECK(strcmp(text, again) == 0);
        FUZZ_CHECK(strlen(text) < 30 * strlen(given) + 100);
        free(again);
    }
    free(text);
}

static void check_settle(const char *text, unsigned state)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!schema) return;
    json_t *before = json_deep_copy(schema);
    struct oracle oracle = {.state = state};
    bool changed = member_names_settle(schema, possible, &oracle);
    FUZZ_CHECK(changed || json_equal(schema, before));
    char *dumped = json_dumps(schema, JSON_ENCODE_ANY);
    FUZZ_CHECK(dumped != NULL);
    free(dumped);
    json_decref(before);
    json_decref(schema);
}

static void check_ends(const char *text)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), *copy = json_deep_copy(schema);
    const char *ref = schema ? schema_endless_ref(schema) : NULL, *again = copy ? schema_endless_ref(copy) : NULL;
    FUZZ_CHECK(!ref == !again && (!ref || strcmp(ref, again) == 0));
    FUZZ_CHECK(!ref || (strchr(text, '$') || strchr(text, '\\')));
    json_decref(copy);
    json_decref(schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    char *text = calloc(size, 1);
    memcpy(text, data + 1, size - 1);
    check_close(text);
    check_settle(text, data[0]);
    check_ends(text);
    free(text);
    return 0;
}
