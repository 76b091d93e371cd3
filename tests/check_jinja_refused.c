// SPDX-License-Identifier: Apache-2.0
// The Jinja interpreter names what it does not support.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/jinja/jinja.h"
#include "tests/suite.h"

static const struct tm now = {.tm_mday = 1, .tm_year = 126};

static void expect_refusal(const char *source, const char *part)
{
    struct jinja_template *t = NULL;
    struct jinja_output output;
    const struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    enum status status = jinja_compile(source, strlen(source), &t);
    if (status == STATUS_OK) status = jinja_render(t, NULL, 0, &now, &limits, &output);
    ck_assert_msg(status != STATUS_OK, "%s", source);
    ck_assert_msg(strstr(status_message(), part), "%s: %s", source, status_message());
    jinja_free(t);
}

START_TEST(other_templates_are_refused)
{
    static const char sentence[] = "no access to other templates";
    expect_refusal("{% include 'x' %}", sentence);
    expect_refusal("{% include 'x' ignore missing %}", sentence);
    expect_refusal("{% import 'x' as y %}", sentence);
    expect_refusal("{% from 'x' import y %}", sentence);
    expect_refusal("{% extends 'x' %}", sentence);
    expect_refusal("{% block b %}{% endblock %}{{ self.b() }}", "'self' is undefined");
}
END_TEST

START_TEST(filters_that_are_not_supported_are_named)
{
    static const char *const names[] = {"pprint", "random", "striptags", "urlize", "wordwrap"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[64];
        snprintf(source, sizeof source, "{{ 'a' | %s }}", names[i]);
        expect_refusal(source, names[i]);
        expect_refusal(source, "not supported");
    }
    expect_refusal("{{ 'a' | nosuch }}", "No filter named 'nosuch'");
}
END_TEST

START_TEST(a_missing_end_is_named)
{
    expect_refusal("{% if 1 %}a", "'endif' is missing");
    expect_refusal("{% if 1 %}a{% elif 2 %}b", "'endif' is missing");
    expect_refusal("{% for a in 'b' %}c", "'endfor' is missing");
}
END_TEST

SUITE("jinja_refused")
{
    TEST(other_templates_are_refused);
    TEST(filters_that_are_not_supported_are_named);
    TEST(a_missing_end_is_named);
}
