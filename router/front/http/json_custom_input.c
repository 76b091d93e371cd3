// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_custom_input.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Returns true if the bytes begin {"input":" with blanks between the tokens. *whole_p: they are all of it.
static bool head_fits(const char *head, int n, bool *whole_p)
{
    static const char *const tokens[] = {"{", "\"input\"", ":", "\""};
    int at = 0;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        while (at < n && is_blank(head[at]))
            at++;
        for (const char *c = tokens[t]; *c; c++, at++) {
            if (at == n) return true;
            if (head[at] != *c) return false;
        }
    }
    *whole_p = true;
    return true;
}

static void head_push(struct custom_input *in, char c, struct bytes *out)
{
    bool whole = false;
    in->head[in->n_head++] = c;
    const bool fits = head_fits(in->head, in->n_head, &whole);
    if (whole) {
        in->state = CUSTOM_TEXT;
    } else if (!fits || in->n_head == CUSTOM_HEAD_BYTES_MAX) {
        bytes_add(out, in->head, (size_t)in->n_head);
        in->state = CUSTOM_RAW;
    }
}

static void character_add(int32_t c, struct bytes *out)
{
    char utf8[4];
    bytes_add(out, utf8, utf8_encode(c, utf8));
}

// Ends a surrogate pair whose second half is missing.
static void high_end(struct custom_input *in, struct bytes *out)
{
    if (in->high) character_add(0xfffd, out);
    in->high = 0;
}

static void unit_add(struct custom_input *in, int32_t unit, struct bytes *out)
{
    if (unit >= 0xdc00 && unit <= 0xdfff && in->high) {
        character_add(0x10000 + ((in->high - 0xd800) << 10) + (unit - 0xdc00), out);
        in->high = 0;
        return;
    }
    high_end(in, out);
    if (unit >= 0xd800 && unit <= 0xdbff)
        in->high = unit;
    else
        character_add(unit >= 0xdc00 && unit <= 0xdfff ? 0xfffd : unit, out);
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return found ? (int)(found - digits) : -1;
}

// Decodes the complete escape sequence: a backslash and a letter, or \uXXXX.
static void escape_end(struct custom_input *in, struct bytes *out)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char name = in->escape[1], *found = name ? strchr(names, name) : NULL;
    int32_t unit = 0;
    in->n_escape = 0;
    if (name != 'u') {
        high_end(in, out);
        bytes_add(out, found ? &values[found - names] : &name, 1);
        return;
    }
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(in->escape[i]);
        if (digit < 0) {
            unit_add(in, 0xfffd, out);
            return;
        }
        unit = unit * 16 + digit;
    }
    unit_add(in, unit, out);
}

static void text_push(struct custom_input *in, char c, struct bytes *out)
{
    if (in->n_escape) {
        in->escape[in->n_escape++] = c;
        if (in->n_escape == (in->escape[1] == 'u' ? 6 : 2)) escape_end(in, out);
        return;
    }
    if (c == '\\') {
        in->escape[in->n_escape++] = c;
        return;
    }
    high_end(in, out);
    if (c == '"')
        in->state = CUSTOM_END;
    else
        bytes_add(out, &c, 1);
}

void custom_input_push(struct custom_input *in, const char *piece, size_t n, struct bytes *out)
{
    for (size_t i = 0; i < n; i++) {
        switch (in->state) {
        case CUSTOM_HEAD: head_push(in, piece[i], out); break;
        case CUSTOM_TEXT: text_push(in, piece[i], out); break;
        case CUSTOM_RAW: bytes_add(out, piece + i, n - i); return;
        case CUSTOM_END: return;
        }
    }
}

void custom_input_finish(struct custom_input *in, struct bytes *out)
{
    if (in->state == CUSTOM_TEXT) high_end(in, out);
    in->state = CUSTOM_END;
}
