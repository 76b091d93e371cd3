// SPDX-License-Identifier: Apache-2.0
// Implements strftime_now: Python's datetime.strftime() of a time without a time zone.
#include <string.h>

#include "lib/jinja/value.h"

static void add_field(struct run *run, struct text *text, const char *field, int n, int tag)
{
    enum { FIELD_BYTES = 256 };
    char format[8] = "", out[FIELD_BYTES];
    char kind = field[n - 1];
    if (kind == 'z' || kind == 'Z') return;
    if (kind == 'f') {
        text_add(run, text, "000000", 6, tag);
        return;
    }
    memcpy(format, field, (size_t)n);
    text_add(run, text, out, strftime(out, sizeof out, format, run->now), tag);
}

void text_add_strftime(struct run *run, struct text *text, struct value v)
{
    const struct string *s = v.string;
    int tag = string_tag(s);
    for (size_t i = 0; i < s->n;) {
        size_t n = 1;
        if (s->data[i] == '%' && i + 1 < s->n && s->data[i + 1]) {
            bool modified = strchr("-_0^#EO", s->data[i + 1]) && i + 2 < s->n && (s->data[i + 2] | 0x20) >= 'a' &&
                            (s->data[i + 2] | 0x20) <= 'z';
            n = modified ? 3 : 2;
            if (!(s->data[i + n - 1] & 0x80)) {
                add_field(run, text, s->data + i, (int)n, tag);
                i += n;
                continue;
            }
            n = 1;
        }
        text_add(run, text, s->data + i, n, tag);
        i += n;
    }
}
