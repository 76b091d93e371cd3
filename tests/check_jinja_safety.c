// SPDX-License-Identifier: Apache-2.0
// The Jinja interpreter and hostile templates or inputs: origins of bytes, bounds, malformed sources.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/jinja/jinja.h"
#include "tests/suite.h"
#include "tests/test_data.h"
#include "text_data.h"

static const struct tm now = {.tm_mday = 1, .tm_year = 126};

// ---- Origins.

// Returns the output with its inputs marked: [tag:bytes].
static char *marked(const struct jinja_output *output)
{
    char *text = mem_string("");
    size_t at = 0;
    for (int i = 0; i <= output->n_spans; i++) {
        struct jinja_span end = {output->text_bytes, output->text_bytes, 0};
        const struct jinja_span *span = i < output->n_spans ? &output->spans[i] : &end;
        ck_assert_uint_ge(span->start, at);
        ck_assert_uint_ge(span->end, span->start);
        ck_assert_uint_le(span->end, output->text_bytes);
        char *longer = mem_format("%s%.*s", text, (int)(span->start - at), output->text + at);
        free(text);
        text = longer;
        at = span->end;
        if (i == output->n_spans) break;
        ck_assert_uint_gt(span->end, span->start);
        ck_assert_int_ge(span->tag, 0);
        longer = mem_format("%s[%d:%.*s]", text, span->tag, (int)(span->end - span->start), output->text + span->start);
        free(text);
        text = longer;
    }
    return text;
}

static void ck_origins(const char *source, const char *expected)
{
    static const char *const words[] = {"user", NULL};
    json_t *messages =
        json_loads("[{\"role\": \"user\", \"content\": \"ab\"}, {\"role\": \"hacker\", \"content\": \" C d \"}, "
                   "{\"role\": \"user\", \"n\": 5, \"yes\": true, \"list\": [\"x\", \"y\"]}]",
                   0, NULL);
    json_t *name = json_string("N<");
    const struct jinja_input inputs[] = {
        {.name = "m", .value = messages, .tag_elements = true, .plain_member = "role", .plain_words = words},
        {.name = "bos", .value = name, .tag = JINJA_TEMPLATE},
        {.name = "v", .value = name, .tag = 7}};
    struct jinja_template *t;
    struct jinja_output output;
    const struct jinja_limits limits = JINJA_LIMITS_DEFAULT;
    enum status status = jinja_compile(source, strlen(source), &t);
    ck_assert_msg(status == STATUS_OK, "%s: %s", source, status_message());
    status = jinja_render(t, inputs, 3, &now, &limits, &output);
    ck_assert_msg(status == STATUS_OK, "%s: %s", source, status_message());
    char *text = marked(&output);
    ck_assert_msg(!strcmp(text, expected), "%s: %s, expected %s", source, text, expected);
    free(text);
    jinja_output_fini(&output);
    jinja_free(t);
    json_decref(messages);
    json_decref(name);
}

START_TEST(every_byte_knows_its_origin)
{
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"x{{ bos }}y", "xN<y"},
        {"x{{ v }}y", "x[7:N<]y"},
        {"{{ m[0].role }}{{ m[1].role }}", "user[1:hacker]"},
        {"{{ '<' + m[0].content + '>' }}", "<[0:ab]>"},
        {"{{ '<' ~ m[0].content ~ m[1].content ~ '>' }}", "<[0:ab][1: C d ]>"},
        {"{% set x = m[0].content + '-' %}{% set y = x + m[1].content %}{{ x }}|{{ y }}", "[0:ab]-|[0:ab]-[1: C d ]"},
        {"{{ m[0].content[1:] }}{{ ('x' ~ m[0].content ~ 'y')[1:-1] }}{{ ('x' ~ m[0].content ~ 'y')[2:] }}",
         "[0:babb]y"},
        {"{{ m[0].content[::-1] }}{{ m[0].content[0] }}{{ m[0].content|first }}{{ m[0].content|last }}", "[0:baaab]"},
        {"{{ m[1].content|trim }}{{ m[1].content.strip() }}{{ m[1].content.rstrip() }}", "[1:C dC d C d]"},
        {"{{ ('<' ~ m[0].content ~ '>').replace('a', 'xy') }}", "<xy[0:b]>"},
        {"{{ '<x>'|replace('x', v) }}{{ 'aa'.replace('', v) }}", "<[7:N<]>[7:N<]a[7:N<]a[7:N<]"},
        {"{{ ('q ' ~ m[1].content).split()|join('+') }}", "q+[1:C]+[1:d]"},
        {"{{ m[1].content.split('d')[0] }}{{ ('a\nb' ~ v).splitlines()[1] }}", "[1: C ]b[7:N<]"},
        {"{{ [v, 'x']|join(m[0].content) }}", "[7:N<][0:ab]x"},
        {"{{ '-%s-%5s' % (v, m[0].content) }}{{ v % () }}", "-[7:N<]-   [0:ab][7:N<]"},
        {"{{ '-{}-{:>4}'.format(v, m[0].content) }}", "-[7:N<]-  [0:ab]"},
        {"{{ v|tojson }}{{ [v]|tojson }}{{ {'k': v, v: 1}|tojson }}",
         "\"[7:N<]\"[\"[7:N<]\"]{\"k\": \"[7:N<]\", \"[7:N<]\": 1}"},
        {"{{ (v ~ '\n')|tojson }}{{ ('\n' ~ v ~ '\"')|tojson }}", "\"[7:N<]\\n\"\"\\n[7:N<]\\\"\""},
        {"{{ m[2]|tojson }}",
         "{\"[2:role]\": \"user\", \"[2:n]\": [2:5], \"[2:yes]\": [2:true], \"[2:list]\": [\"[2:x]\", \"[2:y]\"]}"},
        {"{{ m[2].n }}{{ m[2].n + 1 }}{{ m[2].n * 1.5 }}{{ -m[2].n }}{{ m[2].yes }}{{ m[2].n|string }}{{ m[2].n|float "
         "}}",
         "[2:567.5-5True55.0]"},
        {"{{ m[2].list }}{{ [v] }}{{ {'a': v} }}", "['[2:x]', '[2:y]']['[7:N<]']{'a': '[7:N<]'}"},
        {"{{ v|upper }}{{ v|lower }}{{ ('x' ~ v)|upper }}{{ v.title() }}{{ v|capitalize }}{{ 'x'|upper }}",
         "[7:N<n<]X[7:N<N<N<]X"},
        {"{{ v|e }}{{ (v|safe) + '<' }}", "[7:N&lt;N<]&lt;"},
        {"{{ ('a\n' ~ v)|indent(2) }}{{ 'a\nb'|indent(v) }}", "a\n  [7:N<]a\n[7:N<]b"},
        {"{{ v * 2 }}{{ (v ~ '-') * 2 }}", "[7:N<N<N<]-[7:N<]-"},
        {"{{ (v ~ ' abc def ghi')|truncate(8) }}{{ v.center(4) }}{{ v.ljust(3, '.') }}", "[7:N<]... [7:N<] [7:N<]."},
        {"{% set x %}<{{ v }}>{% endset %}{{ x }}{{ x|upper }}", "<[7:N<]><[7:N<]>"},
        {"{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(v) }}{{ f(f(v)) }}", "<[7:N<]><<[7:N<]>>"},
        {"{% macro f() %}<{{ caller(v) }}>{% endmacro %}{% call(a) f() %}-{{ a }}-{% endcall %}", "<-[7:N<]->"},
        {"{% filter upper %}a{{ v }}{% endfilter %}", "A[7:N<]"},
        {"{% set ns = namespace(t='') %}{% for x in m[:2] %}{% set ns.t = ns.t ~ '<' ~ x.content ~ '>' %}{% endfor "
         "%}{{ ns.t }}",
         "<[0:ab]><[1: C d ]>"},
        {"{% for k, x in m[2]|items %}{{ k }}{% endfor %}{% for c in v %}{{ c }}.{% endfor %}",
         "[2:rolenyeslist][7:N].[7:<]."},
        {"{{ m|map(attribute='content')|select('string')|join }}{{ m[2].list|sort(reverse=true)|join }}",
         "[0:ab][1: C d ][2:yx]"},
        {"{{ m[2].list|map('upper')|join('-') }}{{ m[2].list|batch(1)|map('first')|join }}", "[2:X]-[2:Yxy]"},
        {"{{ v|urlencode }}{{ v|list|join }}{{ 'x' ~ v|default('d') }}{{ q|default(v) }}", "[7:N%3CN<]x[7:N<N<]"},
        {"{{ strftime_now(v) }}{{ v.zfill(3) }}{{ v.partition('<')[1] }}", "[7:N<]0[7:N<<]"},
        {"{{ {'a': m[0].content, v: 1}|xmlattr }}{{ m[2].n|filesizeformat }}",
         " a=\"[0:ab]\" [7:N&lt;]=\"1\"[2:5 Bytes]"},
        {"{{ '%d%%' % m[2].n }}{{ '{:03d}'.format(m[2].n) }}{{ m[2].n|round(1) }}", "[2:5]%00[2:55]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_origins(cases[i].source, cases[i].expected);
}
END_TEST

// ---- Bounds.

static enum status run(const char *source, const json_t *value, struct jinja_limits limits)
{
    struct jinja_template *t;
    struct jinja_output output;
    const struct jinja_input input = {.name = "v", .value = value};
    enum status status = jinja_compile(source, strlen(source), &t);
    if (status != STATUS_OK) return status;
    status = jinja_render(t, &input, 1, &now, &limits, &output);
    if (status == STATUS_OK) jinja_output_fini(&output);
    jinja_free(t);
    return status;
}

START_TEST(endless_templates_end_with_an_error)
{
    static const struct {
        const char *source, *reason;
    } cases[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
        {"{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "nested more than"},
        {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}", "memory"},
        {"{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
         "memory"},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "memory"},
        // Work that no loop of the template shows.
        {"{{ ('a' * 4000 * 4000).rfind('a' * 4000 * 2000 ~ 'b') }}", "steps"},
        {"{{ ('a' * 4000 * 4000).rsplit('a' * 4000 * 2000 ~ 'b') }}", "steps"},
        {"{% set s = 'a' * 4000 * 4000 %}{% set d = {s: 1} %}{% for i in range(99999) %}{{ d[s ~ ''] }}{% endfor %}",
         "steps"},
        {"{% set d = {'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1, 'f': 1, 'g': 1, 'h': 1, 'i': 1} %}"
         "{% set s = 'a' * 4000 * 4000 %}{% for i in range(99999) %}{% if s in d %}{% endif %}{% endfor %}",
         "steps"},
        {"{% set s = 'a' * 4000 * 4000 %}{% for i in range(99999) %}{% if s.startswith(s) %}{% endif %}{% endfor %}",
         "steps"},
        {"{% set s = ' ' * 4000 * 4000 %}{% for i in range(99999) %}{{ s|int }}{{ s|float }}{% endfor %}", "steps"},
        {"{% set s = 'a' * 4000 * 4000 %}{% for i in range(99999) %}{{ 'b'.strip(s) }}{% endfor %}", "steps"},
        {"{% set a = [1] * 1000000 %}{% set b = [1] * 1000000 %}{% for i in range(99999) %}{% if a == b %}{% endif %}"
         "{% endfor %}",
         "steps"},
        {"{% set a = [[1] * 1000000] %}{% set b = [[1] * 1000000] %}{% for i in range(99999) %}{% if a < b %}{% endif "
         "%}"
         "{% endfor %}",
         "steps"},
        {"{{ dict([['nan'|float, 1]] * 100000) }}", "steps"},
        {"{{ 'x' * 1000000000000 }}", "memory"},
        {"{{ [1] * 1000000000000 }}", "memory"},
        {"{{ 'x'.ljust(1000000000000) }}", "memory"},
        {"{{ 'x'|center(1000000000000) }}", "memory"},
        {"{{ '%99999999d' % 1 }}", "width"},
        {"{{ '{:99999999}'.format(1) }}", "width"},
        {"{{ 'aaaa'|indent(100000000000) }}", "memory"},
        {"{% for a in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 1000 }}{% endfor %}",
         "longer than"},
        {"{% set ns = namespace(s=[]) %}{% for a in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
         "nested"},
        {"{% set ns = namespace(s=[]) %}{% for a in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson "
         "}}",
         "nested"},
        {"{% set ns = namespace(s=[]) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s == [ns.s] "
         "}}",
         "nested"},
        {"{% set ns = namespace(s=['a']) %}{% for a in range(9999) %}{% set ns.s = ns.s|map('upper') %}{% endfor %}{{ "
         "ns.s|list }}",
         "nested"},
        {"{% set x = 'a' * 3000 %}{% for i in range(99999) %}{% if x|replace('a', 'b') %}{% endif %}{% endfor %}",
         "memory"},
        {"{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% if 'ab' in x %}{% endif %}{% endfor %}", "steps"},
        {"{% set x = range(99999)|list %}{% for i in range(99999) %}{% if 'z' in x %}{% endif %}{% endfor %}", "steps"},
        {"{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% if x == x[1:] ~ 'a' %}{% endif %}{% endfor %}",
         "steps"},
        {"{% set x = 'a,' * 3000 %}{% for i in range(99999) %}{% if x.split(',') %}{% endif %}{% endfor %}", "memory"},
        {"{% for i in range(99999) %}{{ 1e-300 }}{{ 1e-300 }}{{ 1e-300 }}{{ 1e-300 }}{{ 1e-300 }}{% endfor %}",
         "steps"},
        {"{% for i in range(99999) %}{% if [1e-300, 1e-300, 1e-300, 1e-300, 1e-300]|tojson %}{% endif %}{% endfor %}",
         "steps"},
        {"{{ 9 ** 9 ** 9 }}", "64 bits"},
        {"{{ strftime_now('%c' * 100000000) }}", "memory"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested"},
        {"{{ v|tojson(indent=100000000000) }}", "memory"},
    };
    const struct jinja_limits limits = {3000000, (size_t)4 << 20, (size_t)64 << 20, 1000};
    json_t *value = json_pack("[i]", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status status = run(cases[i].source, value, limits);
        ck_assert_msg(status == STATUS_INVALID, "%s: %s", cases[i].source, status_message());
        ck_assert_msg(strstr(status_message(), cases[i].reason), "%s: %s", cases[i].source, status_message());
    }
    json_decref(value);
}
END_TEST

// Finding a variable among many takes steps.
START_TEST(many_variables_take_steps)
{
    enum { VARIABLES = 5000 };
    static const char rest[] = " %}{% for i in range(9999) %}{% if v0 %}{% endif %}{% endfor %}{% endwith %}";
    const struct jinja_limits limits = {300000, (size_t)4 << 20, (size_t)64 << 20, 1000};
    char *source = mem_alloc(VARIABLES * 16 + sizeof rest), *at = source + sprintf(source, "{%% with v0=0");
    for (int i = 1; i < VARIABLES; i++)
        at += sprintf(at, ",v%d=0", i);
    memcpy(at, rest, sizeof rest);
    json_t *value = json_pack("[i]", 1);
    ck_assert_int_eq(run(source, value, limits), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), "steps") != NULL, "%s", status_message());
    json_decref(value);
    free(source);
}
END_TEST

START_TEST(numbers_at_their_limits_are_those_of_python)
{
    static const struct {
        const char *source, *expected; // NULL: over 64 bits
    } cases[] = {
        {"{{ 9223372036854775807|round }}", "9223372036854775807"},
        {"{{ 9007199254740993|round }}", "9007199254740993"},
        {"{{ 5|round(-400) }}", "0"},
        {"{{ 15|round(-1) }}", "20"},
        {"{{ 25|round(-1) }}", "20"},
        {"{{ (-26)|round(-1) }}", "-30"},
        {"{{ 9223372036854775807|round(-2) }}", "9223372036854775800"},
        {"{{ 9223372036854775807|round(-1) }}", NULL},
        {"{{ 9223372036854775807|round(-19) }}", NULL},
        {"{{ 4611686018427387904|round(-19) }}", "0"},
        {"{{ 9223372036854775807|round(-9223372036854775807 - 1) }}", "0"},
        {"{{ 1.5|round(-400) }}", "0.0"},
        {"{{ true|round }}", "1"},
        {"{{ (1.0e308).is_integer() }}", "True"},
        {"{{ (1.0e308 * 10).is_integer() }}", "False"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].expected)
            ck_origins(cases[i].source, cases[i].expected);
        else
            ck_assert_msg(run(cases[i].source, NULL, JINJA_LIMITS_DEFAULT) == STATUS_INVALID, "%s", cases[i].source);
    }
}
END_TEST

static char *repeated(const char *before, const char *part, int n, const char *after)
{
    char *text = mem_alloc(strlen(before) + strlen(part) * (size_t)n + strlen(after) + 1);
    strcpy(text, before);
    char *at = text + strlen(text);
    for (int i = 0; i < n; i++, at += strlen(part))
        memcpy(at, part, strlen(part));
    strcpy(at, after);
    return text;
}

START_TEST(deep_sources_are_refused)
{
    static const char *const parts[][3] = {
        {"{{ ", "(", "1 }}"},        {"{{ ", "[", "1 }}"},         {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},        {"{{ 1 ", "+ 1 ", "}}"},      {"{{ x", "|upper", "}}"},
        {"{{ x", ".a", "}}"},        {"{{ x", "()", "}}"},         {"{{ 1 ", "if 1 else 1 ", "}}"},
        {"", "{% if 1 %}", ""},      {"", "{% for a in b %}", ""}, {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
        {"{{ x", "[x", "}}"},        {"{% set ", "(", "a = 1 %}"}, {"{{ ", "{1:", "}}"},
        {"{{ 1 ", "** 1 ", "}}"},    {"{{ 1 ", "and 1 ", "}}"},    {"{{ ", "f(", "}}"},
        {"", "{% macro m() %}", ""}, {"{{ x ", "is not x ", "}}"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *source = repeated(parts[i][0], parts[i][1], 20000, parts[i][2]);
        ck_assert_msg(run(source, NULL, JINJA_LIMITS_DEFAULT) != STATUS_OK, "%s%s", parts[i][0], parts[i][1]);
        free(source);
    }
}
END_TEST

START_TEST(long_sources_of_small_depth_are_fine)
{
    static const char *const parts[][3] = {
        {"{{ 'a' ", "~ 1 ", "}}"}, {"", "{% if 1 %}{{ v }}{% endif %}", ""}, {"{{ [", "1,", "] }}"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *source = repeated(parts[i][0], parts[i][1], 2000, parts[i][2]);
        ck_assert_msg(run(source, NULL, JINJA_LIMITS_DEFAULT) == STATUS_OK, "%s: %s", parts[i][1], status_message());
        free(source);
    }
}
END_TEST

START_TEST(deep_inputs_are_refused)
{
    json_t *value = json_array();
    for (int i = 0; i < 3000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, value);
        value = outer;
    }
    ck_assert_int_eq(run("{{ v }}", value, JINJA_LIMITS_DEFAULT), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "nested"));
    ck_assert_int_eq(run("{{ w }}", value, JINJA_LIMITS_DEFAULT), STATUS_OK); // not used, not read
    json_decref(value);
}
END_TEST

// Objects of many keys are found in constant time: a billion comparisons would take more than the steps.
START_TEST(large_objects_are_indexed)
{
    json_t *object = json_object();
    for (int i = 0; i < 30000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(object, key, json_integer(i));
    }
    ck_assert_int_eq(
        run("{% for k in v %}{% if v[k] != loop.index0 %}{{ raise_exception('no') }}{% endif %}{% endfor %}", object,
            JINJA_LIMITS_DEFAULT),
        STATUS_OK);
    json_decref(object);
}
END_TEST

// ---- Malformed sources.

static void render_any(const char *source, size_t n, const json_t *messages)
{
    const struct jinja_limits limits = {20000, 100000, 2000000, 200};
    struct jinja_template *t;
    struct jinja_output output;
    const struct jinja_input inputs[] = {{.name = "messages", .value = messages, .tag_elements = true},
                                         {.name = "add_generation_prompt", .value = json_true(), .tag = 1}};
    if (jinja_compile(source, n, &t) != STATUS_OK) return;
    if (jinja_render(t, inputs, 2, &now, &limits, &output) == STATUS_OK) jinja_output_fini(&output);
    jinja_free(t);
}

static json_t *some_messages(void)
{
    return json_loads(
        "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"U\"}, {\"role\": "
        "\"assistant\", \"content\": \"A\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {}}}]}]",
        0, NULL);
}

START_TEST(truncated_and_changed_cases_never_crash)
{
    char *path = repository_data("jinja/cases.json");
    json_t *root = json_read(path), *messages = some_messages(), *c;
    size_t i;
    uint64_t state = 1;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        char *source = mem_string(json_string_value(json_object_get(c, "template")));
        size_t n = strlen(source);
        for (size_t end = i % 3; end <= n; end += 3)
            render_any(source, end, messages);
        for (int round = 0; round < 8; round++) {
            static const char bytes[] = "{}%#-+()[]|~.,:'\"\\=<>! 0a\n\x80";
            source[random_next(&state) % n] = bytes[random_next(&state) % (sizeof bytes - 1)];
            render_any(source, n, messages);
        }
        free(source);
    }
    json_decref(messages);
    json_decref(root);
    free(path);
}
END_TEST

START_TEST(sources_that_are_not_utf8_are_refused)
{
    ck_assert_int_eq(run("a\xFF{{ 1 }}", NULL, JINJA_LIMITS_DEFAULT), STATUS_DATA);
    ck_assert_ptr_nonnull(strstr(status_message(), "byte 1 is not UTF-8"));
}
END_TEST

START_TEST(truncated_published_templates_never_crash)
{
    char *path = external_data("chat_templates/rendered.json");
    json_t *root = json_read(path), *messages = some_messages(), *cases;
    const char *name;
    uint64_t state = 1;
    json_object_foreach(json_object_get(root, "cases"), name, cases)
    {
        char *relative = mem_format("chat_templates/%s", name), *file = external_data(relative);
        size_t n;
        char *source = file_read(file, &n);
        // Testing every byte would take minutes under the sanitizers.
        for (size_t end = random_next(&state) % 40; end < n; end += 1 + random_next(&state) % 40)
            render_any(source, end, messages);
        free(source);
        free(file);
        free(relative);
    }
    json_decref(messages);
    json_decref(root);
    free(path);
}
END_TEST

SUITE("jinja safety")
{
    TIMEOUT(120);
    if (external_data_wanted(argc, argv)) {
        TEST(truncated_published_templates_never_crash);
    } else {
        TEST(every_byte_knows_its_origin);
        TEST(endless_templates_end_with_an_error);
        TEST(many_variables_take_steps);
        TEST(numbers_at_their_limits_are_those_of_python);
        TEST(deep_sources_are_refused);
        TEST(long_sources_of_small_depth_are_fine);
        TEST(deep_inputs_are_refused);
        TEST(large_objects_are_indexed);
        TEST(truncated_and_changed_cases_never_crash);
        TEST(sources_that_are_not_utf8_are_refused);
    }
}
