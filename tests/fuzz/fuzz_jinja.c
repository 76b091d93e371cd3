// SPDX-License-Identifier: Apache-2.0
// Jinja: the input is a template, rendered with a fixed conversation and small limits. Origins must be ascending and
// inside the text.
#include <jansson.h>
#include <stdlib.h>

#include "jinja/jinja.h"
#include "tests/fuzz/fuzz.h"

static json_t *variables(void)
{
    static json_t *object; // kept for the whole process
    if (!object)
        object = json_loads(
            "{\"messages\": [{\"role\": \"system\", \"content\": \"S \\u00e9\"}, {\"role\": \"user\", "
            "\"content\": [{\"type\": \"text\", \"text\": \"U\\n\"}]}, {\"role\": \"assistant\", "
            "\"content\": null, \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", "
            "\"arguments\": {\"a\": [1, 2.5, true, null]}}}]}], \"tools\": [{\"name\": \"f\"}], \"x\": \"a,b\", "
            "\"n\": 3, \"d\": {\"b\": 1, \"a\": 2}}",
            0, NULL);
    return object;
}

static void check_spans(const struct jinja_output *output)
{
    size_t at = 0;
    for (int i = 0; i < output->n_spans; i++) {
        const struct jinja_span *span = &output->spans[i];
        FUZZ_CHECK(span->start >= at && span->end > span->start && span->end <= output->text_bytes && span->tag >= 0);
        at = span->end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct jinja_limits limits = {50000, 1 << 18, 1 << 23, 300};
    const struct tm now = {.tm_mday = 1, .tm_year = 126};
    struct jinja_input inputs[8];
    struct jinja_template *t;
    struct jinja_output output;
    const char *name;
    json_t *value;
    int n = 0;
    if (jinja_compile((const char *)data, size, &t) != STATUS_OK) return 0;
    json_object_foreach(variables(), name, value)
    {
        inputs[n] = (struct jinja_input){.name = name, .value = value, .tag = n, .tag_elements = true};
        n++;
    }
    if (jinja_render(t, inputs, n, &now, &limits, &output) == STATUS_OK) {
        check_spans(&output);
        jinja_output_fini(&output);
    }
    jinja_free(t);
    return 0;
}
