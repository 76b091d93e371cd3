// SPDX-License-Identifier: Apache-2.0
#include "lib/tracing/context.h"

#include <string.h>

#include "lib/base/mem.h"

// --- traceparent: VERSION-TRACE_ID-PARENT_ID-FLAGS

enum { VERSION_AT = 0, TRACE_ID_AT = 3, PARENT_ID_AT = 36, FLAGS_AT = 53, PARENT_LENGTH = 55, FLAG_SAMPLED = 1 };

// Returns the value of a digit, or -1. The specification demands lower-case digits.
static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_read(const char *text, uint8_t *bytes, int n)
{
    for (int i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool all_zero(const uint8_t *bytes, int n)
{
    for (int i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

// Returns true if the length is valid. Version 00 ends after the flags, and a later version may go on after another
// dash. Version ff is forbidden.
static bool length_valid(const char *text, size_t length, uint8_t version)
{
    if (version == 0xff || length < PARENT_LENGTH) return false;
    return length == PARENT_LENGTH || (version > 0 && text[PARENT_LENGTH] == '-');
}

static bool parent_read(const char *text, struct trace_context *context)
{
    uint8_t version, flags;
    size_t length = strlen(text);
    if (length < PARENT_LENGTH || !hex_read(text + VERSION_AT, &version, 1) || !length_valid(text, length, version))
        return false;
    if (text[TRACE_ID_AT - 1] != '-' || text[PARENT_ID_AT - 1] != '-' || text[FLAGS_AT - 1] != '-') return false;
    if (!hex_read(text + TRACE_ID_AT, context->trace_id, TRACE_ID_BYTES) ||
        !hex_read(text + PARENT_ID_AT, context->parent_id, SPAN_ID_BYTES) || !hex_read(text + FLAGS_AT, &flags, 1))
        return false;
    context->sampled = flags & FLAG_SAMPLED;
    return !all_zero(context->trace_id, TRACE_ID_BYTES) && !all_zero(context->parent_id, SPAN_ID_BYTES);
}

// --- tracestate: KEY=VALUE,KEY=VALUE...

enum { MEMBERS_MAX = 32, KEY_LENGTH_MAX = 256, VALUE_LENGTH_MAX = 256 };

static size_t key_length(const char *text)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789_-*/@";
    return *text && strchr(first, *text) ? strspn(text, rest) : 0;
}

static size_t value_length(const char *text)
{
    size_t n = 0;
    while (text[n] >= ' ' && text[n] <= '~' && text[n] != ',' && text[n] != '=')
        n++;
    return n;
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

// Returns the end of one member, which may be empty, or NULL if it is malformed. Blanks at the end of a value belong to
// the text after it.
static const char *member_end(const char *text, int *n_members)
{
    size_t key = key_length(text);
    if (!key) return text;
    if (key > KEY_LENGTH_MAX || text[key] != '=') return NULL;
    const char *value = text + key + 1;
    size_t n = value_length(value);
    while (n && value[n - 1] == ' ')
        n--;
    if (!n || n > VALUE_LENGTH_MAX) return NULL;
    ++*n_members;
    return value + n;
}

static bool state_valid(const char *text)
{
    int n_members = 0;
    if (strlen(text) > TRACE_STATE_BYTES_MAX) return false;
    for (;;) {
        text = member_end(skip_blanks(text), &n_members);
        if (!text || n_members > MEMBERS_MAX) return false;
        text = skip_blanks(text);
        if (!*text) return n_members > 0;
        if (*text++ != ',') return false;
    }
}

// --- contexts

static struct trace_context *context_alloc(size_t state_bytes)
{
    return mem_alloc(sizeof(struct trace_context) + state_bytes + 1);
}

struct trace_context *trace_context_create(void)
{
    return context_alloc(0);
}

struct trace_context *trace_context_read(const char *traceparent, const char *tracestate)
{
    struct trace_context parent = {.server_port = 0};
    if (!traceparent || !parent_read(traceparent, &parent)) return trace_context_create();
    size_t state_bytes = tracestate && state_valid(tracestate) ? strlen(tracestate) : 0;
    struct trace_context *context = context_alloc(state_bytes);
    *context = parent;
    if (state_bytes) memcpy(context->state, tracestate, state_bytes);
    return context;
}

bool trace_context_has_trace(const struct trace_context *context)
{
    return !all_zero(context->trace_id, TRACE_ID_BYTES);
}
