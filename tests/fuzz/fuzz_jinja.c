// SPDX-License-Identifier: Apache-2.0
// Jinja: the input is a template, rendered with a fixed conversation and small limits. Origins must be ascending and
// inside the text, whose size stays within its limit. If a template is refused or its rendering fails, the sentence
// names a line of it.
#include <jansson.h>
#include <stdlib.h>

#include "lib/base/utf8.h"
#include "lib/jinja/jinja.h"
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

// Checks the sentence: one line of UTF-8 that names a line of the template, or the byte that is not UTF-8. Earlier
// sentences were cleared.
static void check_sentence(const uint8_t *source, size_t size)
{
    const char *sentence = status_message();
    int line = 0, text_at = 0;
    bool is_text = utf8_valid((const char *)source, size, NULL);
    FUZZ_CHECK(utf8_valid(sentence, strlen(sentence), NULL) && !strchr(sentence, '\n'));
    sscanf(sentence, is_text ? "line %d: %n" : "byte %d %n", &line, &text_at);
    FUZZ_CHECK(text_at > 0 && sentence[text_at] && line >= is_text);
    for (size_t i = 0; is_text && i < size; i++)
        line -= source[i] == '\n' || source[i] == '\r';
    FUZZ_CHECK(!is_text || line <= 1);
}

static void check_output(const struct jinja_output *output, const struct jinja_limits *limits)
{
    FUZZ_CHECK(output->text_bytes <= limits->output_bytes && !output->text[output->text_bytes]);
    FUZZ_CHECK(utf8_valid(output->text, output->text_bytes, NULL));
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
    struct jinja_template *t = NULL;
    struct jinja_output output = {.n_spans = -1};
    const char *name;
    json_t *value;
    int n = 0;
    status_fail(STATUS_OK, "%s", "");
    enum status status = jinja_compile((const char *)data, size, &t);
    FUZZ_CHECK(status == STATUS_OK ? t != NULL : status == STATUS_DATA && !t);
    if (!t) {
        check_sentence(data, size);
        return 0;
    }
    json_object_foreach(variables(), name, value)
    {
        inputs[n] = (struct jinja_input){.name = name, .value = value, .tag = n, .tag_elements = true};
        n++;
    }
    status = jinja_render(t, inputs, n, &now, &limits, &output);
    if (status == STATUS_OK) {
        check_output(&output, &limits);
        check_spans(&output);
        jinja_output_fini(&output);
    } else {
        FUZZ_CHECK(status == STATUS_INVALID && !output.text && output.n_spans == -1);
        check_sentence(data, size);
    }
    jinja_free(t);
    return 0;
}
