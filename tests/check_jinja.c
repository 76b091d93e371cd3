// SPDX-License-Identifier: Apache-2.0
// The Jinja interpreter. Cases of the repository: tests/data/jinja/cases.json, whose expectations come from Jinja
// itself (the file says how). With FOREPACK_DATA: published templates, rendered as Hugging Face transformers does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/jinja/jinja.h"
#include "tests/suite.h"
#include "tests/test_data.h"
#include "text_data.h"

static const struct jinja_limits limits = JINJA_LIMITS_DEFAULT;

struct inputs {
    struct jinja_input at[32];
    int n;
};

static void add_input(struct inputs *inputs, const char *name, const json_t *value)
{
    ck_assert_int_lt(inputs->n, 32);
    inputs->at[inputs->n++] = (struct jinja_input){.name = name, .value = value, .tag = 0};
}

static void add_members(struct inputs *inputs, json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) add_input(inputs, name, value);
}

static struct tm time_of(const char *iso8601)
{
    struct tm now = {0};
    ck_assert_ptr_nonnull(strptime(iso8601, "%Y-%m-%dT%H:%M:%S", &now));
    return now;
}

// Returns the text. On failure returns NULL and sets status_message().
static char *render(const struct jinja_template *t, const struct inputs *inputs, const char *now)
{
    struct tm time = time_of(now);
    struct jinja_output output;
    if (jinja_render(t, inputs->at, inputs->n, &time, &limits, &output) != STATUS_OK) return NULL;
    char *text = mem_string(output.text);
    jinja_output_fini(&output);
    return text;
}

// ---- Published templates.

static char *template_source(const char *name, size_t *n)
{
    char *relative = mem_format("chat_templates/%s", name), *path = external_data(relative);
    char *source = file_read(path, n);
    free(relative);
    free(path);
    return source;
}

static bool has_tools(json_t *root, const char *conversation)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(root, "with_tools"), i, name)
    {
        if (!strcmp(json_string_value(name), conversation)) return true;
    }
    return false;
}

// Returns 1 if the case renders as expected.
static int check_case(json_t *root, const char *template, const struct jinja_template *t, json_t *c)
{
    const char *conversation = json_string_value(json_object_get(c, "conversation"));
    struct inputs inputs = {0};
    add_input(&inputs, "messages", json_object_get(json_object_get(root, "conversations"), conversation));
    add_input(&inputs, "tools", has_tools(root, conversation) ? json_object_get(root, "tools") : NULL);
    add_input(&inputs, "documents", NULL);
    add_input(&inputs, "add_generation_prompt", json_object_get(c, "add_generation_prompt"));
    if (json_object_get(c, "enable_thinking"))
        add_input(&inputs, "enable_thinking", json_object_get(c, "enable_thinking"));
    add_members(&inputs, json_object_get(root, "variables"));
    char *text = t ? render(t, &inputs, json_string_value(json_object_get(root, "now"))) : NULL;
    const char *expected = json_string_value(json_object_get(c, "text"));
    bool equal = text && expected ? !strcmp(text, expected) : !text == !expected;
    if (!equal) {
        printf("%s, %s: %s\n", template, conversation, text ? "" : status_message());
        if (getenv("JINJA_TEST_VERBOSE"))
            printf("expected: %s\ngot: %s\n", expected ? expected : json_string_value(json_object_get(c, "error")),
                   text);
    }
    free(text);
    return equal;
}

START_TEST(published_templates_render_as_in_transformers)
{
    char *path = external_data("chat_templates/rendered.json");
    json_t *root = json_read(path), *cases;
    const char *name;
    int equal = 0, total = 0;
    json_object_foreach(json_object_get(root, "cases"), name, cases)
    {
        struct jinja_template *t = NULL;
        size_t n, i;
        char *source = template_source(name, &n);
        if (jinja_compile(source, n, &t) != STATUS_OK) printf("%s: %s\n", name, status_message());
        json_t *c;
        json_array_foreach(cases, i, c)
        {
            equal += check_case(root, name, t, c);
            total++;
        }
        jinja_free(t);
        free(source);
    }
    printf("%d of %d renderings are identical\n", equal, total);
    ck_assert_int_eq(equal, total);
    json_decref(root);
    free(path);
}
END_TEST

// ---- Cases of the repository.

START_TEST(expressions_and_statements_mean_what_they_mean_to_jinja)
{
    char *path = repository_data("jinja/cases.json");
    json_t *root = json_read(path), *c;
    size_t i;
    int wrong = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const char *source = json_string_value(json_object_get(c, "template"));
        const json_t *expected = json_object_get(c, "text");
        struct inputs inputs = {0};
        struct jinja_template *t = NULL;
        struct jinja_output output = {0};
        struct tm now = time_of(json_string_value(json_object_get(root, "now")));
        add_members(&inputs, json_object_get(root, "variables"));
        enum status status = jinja_compile(source, strlen(source), &t);
        if (status == STATUS_OK) status = jinja_render(t, inputs.at, inputs.n, &now, &limits, &output);
        json_t *got = status == STATUS_OK ? json_stringn(output.text, output.text_bytes) : NULL;
        if (got && expected ? !json_equal(got, expected) : got || expected) {
            wrong++;
            printf("%s\n  expected %s\n  got      %s\n", source,
                   expected ? json_string_value(expected) : json_string_value(json_object_get(c, "error")),
                   got ? json_string_value(got) : status_message());
        } else if (!got && getenv("JINJA_TEST_VERBOSE")) {
            printf("%s\n  error %s\n  ours  %s\n", source, json_string_value(json_object_get(c, "error")),
                   status_message());
        }
        json_decref(got);
        jinja_output_fini(&output);
        jinja_free(t);
    }
    ck_assert_int_eq(wrong, 0);
    json_decref(root);
    free(path);
}
END_TEST

SUITE("jinja")
{
    TIMEOUT(120);
    if (external_data_wanted(argc, argv)) {
        TEST(published_templates_render_as_in_transformers);
    } else {
        TEST(expressions_and_statements_mean_what_they_mean_to_jinja);
    }
}
