// SPDX-License-Identifier: Apache-2.0
// tracing/context: the headers of W3C Trace Context, with the cases that the specification names.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/tracing/context.h"
#include "tests/suite.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define VALID  "00-" TRACE "-" PARENT "-01"

// Returns true if the context has the trace of VALID. The text is in a separate block, so that the sanitizers know its
// end.
static bool is_read(const char *traceparent, bool *sampled_p)
{
    static const uint8_t trace[] = {0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6,
                                    0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36};
    static const uint8_t parent[] = {0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, none[SPAN_ID_BYTES];
    char *text = mem_string(traceparent);
    struct trace_context *context = trace_context_read(text, NULL);
    bool read = trace_context_has_trace(context);
    if (read) {
        ck_assert_mem_eq(context->trace_id, trace, sizeof trace);
        ck_assert_mem_eq(context->parent_id, parent, sizeof parent);
    } else {
        ck_assert_mem_eq(context->parent_id, none, sizeof none);
    }
    *sampled_p = context->sampled;
    free(context);
    free(text);
    return read;
}

START_TEST(valid_parents_are_read)
{
    static const struct {
        const char *text;
        bool sampled;
    } cases[] = {
        {VALID, true},
        {"00-" TRACE "-" PARENT "-00", false},
        {"00-" TRACE "-" PARENT "-03", true}, // the second flag: the trace id is random
        {"00-" TRACE "-" PARENT "-fe", false},
        {"01-" TRACE "-" PARENT "-01", true}, // later versions: the known part
        {"cc-" TRACE "-" PARENT "-01-what-the-future-brings", true},
        {"cc-" TRACE "-" PARENT "-01-", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool sampled;
        ck_assert_msg(is_read(cases[i].text, &sampled), "%s", cases[i].text);
        ck_assert_msg(sampled == cases[i].sampled, "%s", cases[i].text);
    }
}
END_TEST

START_TEST(malformed_parents_are_ignored)
{
    static const char *const cases[] = {
        "",
        "00",
        VALID "-",
        VALID "-01",
        VALID "0",
        " " VALID,
        "ff-" TRACE "-" PARENT "-01",
        "0x-" TRACE "-" PARENT "-01",
        "cc-" TRACE "-" PARENT "-01.what",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-" TRACE "-00F067AA0BA902B7-01",
        "00-" TRACE "-" PARENT "-0A",
        "00-" TRACE "-" PARENT "-1",
        "00-" TRACE "-" PARENT,
        "00-4bf92f3577b34da6a3ce929d0e0e473-" PARENT "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-" PARENT "-01",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool sampled;
        ck_assert_msg(!is_read(cases[i], &sampled), "%s", cases[i]);
        ck_assert_msg(!sampled, "%s", cases[i]);
    }
    struct trace_context *context = trace_context_read(NULL, "a=1");
    ck_assert(!trace_context_has_trace(context));
    ck_assert_str_eq(context->state, "");
    free(context);
}
END_TEST

static bool keeps_state(const char *tracestate)
{
    char *text = mem_string(tracestate);
    struct trace_context *context = trace_context_read(VALID, text);
    ck_assert(trace_context_has_trace(context)); // with any state
    bool kept = strcmp(context->state, tracestate) == 0;
    if (!kept) ck_assert_str_eq(context->state, "");
    free(context);
    free(text);
    return kept;
}

START_TEST(a_valid_state_is_kept)
{
    static const char *const cases[] = {
        "rojo=" PARENT ",congo=t61rcWkgMzE", "a=1", "a=1,,b=2", " a=1 ,\tb=2 ", "1a-_*/@b=x y!~", "fw529a3039@dt=FfAA",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(keeps_state(cases[i]), "%s", cases[i]);
}
END_TEST

// Returns `n` members "kN=1".
static char *members(int n)
{
    char *text = mem_string("");
    for (int i = 0; i < n; i++) {
        char *more = mem_format("%s%sk%d=1", text, i ? "," : "", i);
        free(text);
        text = more;
    }
    return text;
}

START_TEST(a_malformed_state_is_left_out)
{
    static const char *const cases[] = {
        ",", "a", "a=", "=1", "A=1", "a=1=2", "a=1;b=2", "a b=1", "a=\x7f", "a=1,B=2", "-a=1", "a= ",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(!keeps_state(cases[i]), "%s", cases[i]);
    char *most = members(32), *too_many = members(33);
    ck_assert(keeps_state(most));
    ck_assert(!keeps_state(too_many));
    free(most);
    free(too_many);
    char too_long[600] = "a=";
    memset(too_long + 2, 'x', 257);
    ck_assert(!keeps_state(too_long)); // one value
    too_long[258] = '\0';
    ck_assert(keeps_state(too_long));
}
END_TEST

SUITE("trace_context")
{
    TEST(valid_parents_are_read);
    TEST(malformed_parents_are_ignored);
    TEST(a_valid_state_is_kept);
    TEST(a_malformed_state_is_left_out);
}
