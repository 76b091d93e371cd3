// SPDX-License-Identifier: Apache-2.0
// The headers of W3C Trace Context: `traceparent`, a NUL, `tracestate`. An accepted context writes the same headers,
// and can be read again from the part that all versions have in common. A refused context has nothing. The state never
// decides whether the trace is accepted.
#include "lib/tracing/context.h"
#include "tests/fuzz/fuzz.h"

enum { PARENT_LENGTH = 55, PARENT_ID_AT = 36, SAMPLED = 1 };

static void hex_write(char *text, const uint8_t *bytes, int n)
{
    for (int i = 0; i < n; i++)
        sprintf(text + (ptrdiff_t)2 * i, "%02x", bytes[i]);
}

static void parent_write(const struct trace_context *c, char text[PARENT_LENGTH + 1])
{
    memset(text, '-', PARENT_LENGTH);
    memcpy(text, "00", 2);
    hex_write(text + 3, c->trace_id, TRACE_ID_BYTES);
    text[PARENT_ID_AT - 1] = '-';
    hex_write(text + PARENT_ID_AT, c->parent_id, SPAN_ID_BYTES);
    strcpy(text + PARENT_LENGTH - 3, c->sampled ? "-01" : "-00");
}

static bool trace_is_same(const struct trace_context *a, const struct trace_context *b)
{
    return !memcmp(a->trace_id, b->trace_id, sizeof a->trace_id) &&
           !memcmp(a->parent_id, b->parent_id, sizeof a->parent_id) && a->sampled == b->sampled;
}

static void check_refused(const struct trace_context *c)
{
    struct trace_context *none = trace_context_create();
    FUZZ_CHECK(!trace_context_has_trace(none) && !*none->state);
    FUZZ_CHECK(trace_is_same(c, none) && !*c->state);
    free(none);
}

// Checks that ids and flag equal the header's. The flag is part of its last digit.
static void check_accepted(const struct trace_context *c, const char *parent, const char *state)
{
    static const uint8_t no_span[SPAN_ID_BYTES];
    char written[PARENT_LENGTH + 1];
    parent_write(c, written);
    FUZZ_CHECK(strlen(parent) >= PARENT_LENGTH && !memcmp(written + 2, parent + 2, PARENT_LENGTH - 4));
    FUZZ_CHECK(memcmp(c->parent_id, no_span, sizeof no_span) != 0 && memcmp(parent, "ff", 2) != 0);
    FUZZ_CHECK(c->sampled == (strchr("13579bdf", parent[PARENT_LENGTH - 1]) != NULL));
    FUZZ_CHECK(!*c->state || (!strcmp(c->state, state) && strlen(state) <= TRACE_STATE_BYTES_MAX));
    for (const char *at = c->state; *at; at++)
        FUZZ_CHECK((*at >= ' ' && *at <= '~') || *at == '\t'); // may be part of a header
    struct trace_context *again = trace_context_read(written, c->state);
    FUZZ_CHECK(trace_is_same(c, again) && !strcmp(c->state, again->state));
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    char *parent = fuzz_string(&script), *state = fuzz_string(&script);
    struct trace_context *c = trace_context_read(parent, state);
    struct trace_context *without = trace_context_read(parent, NULL), *none = trace_context_read(NULL, state);
    if (trace_context_has_trace(c))
        check_accepted(c, parent, state);
    else
        check_refused(c);
    FUZZ_CHECK(trace_is_same(c, without) && !*without->state && !c->server_port);
    check_refused(none);
    free(none);
    free(without);
    free(c);
    free(parent);
    free(state);
    return 0;
}
