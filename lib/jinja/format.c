// SPDX-License-Identifier: Apache-2.0
// Formats "%s of %d" % (...) and "{} of {:>5}".format(...).
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/jinja/value.h"

enum { WIDTH_MAX = 1 << 16, PRECISION_MAX = 300 };

// Format of one value, in either language.
struct spec {
    char align, sign, type; // align: < > = ^, or 0 for the type's own
    const struct string *fill;
    bool alternate, grouped;
    char group;
    int64_t width, precision; // precision is -1 if not given
};

// ---- Numbers.

static void group_digits(char *digits, size_t size, char separator, int every)
{
    size_t n = strspn(digits, "0123456789abcdefABCDEF"), length = strlen(digits);
    for (size_t at = n; at > (size_t)every && length + 2 < size;) {
        at -= (size_t)every;
        memmove(digits + at + 1, digits + at, length - at + 1);
        digits[at] = separator;
        length++;
    }
}

static void integer_digits(char *out, size_t size, int64_t i, const struct spec *spec)
{
    unsigned long long magnitude = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    char reversed[65];
    unsigned base = spec->type == 'x' || spec->type == 'X' ? 16 : spec->type == 'o' ? 8 : spec->type == 'b' ? 2 : 10;
    size_t n = 0;
    do
        reversed[n++] = (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
    while (magnitude /= base);
    size_t at = 0;
    while (n && at + 1 < size)
        out[at++] = reversed[--n];
    out[at] = 0;
}

static void float_digits(char *out, size_t size, double d, const struct spec *spec)
{
    char type = spec->type == '%' ? 'f' : spec->type ? spec->type : 'g';
    double magnitude = fabs(spec->type == '%' ? d * 100 : d);
    if (!spec->type && spec->precision < 0) {
        float_format(out, size, magnitude);
        return;
    }
    if (!isfinite(d)) {
        snprintf(out, size, "%s%s", isnan(d) ? "nan" : "inf", spec->type == '%' ? "%" : "");
        return;
    }
    char format[8] = {'%', spec->alternate ? '#' : '.', 0};
    snprintf(format, sizeof format, spec->alternate ? "%%#.*%c" : "%%.*%c", type);
    snprintf(out, size, format, spec->precision < 0 ? 6 : (int)spec->precision, magnitude);
    if (!spec->type && strspn(out, "0123456789") == strlen(out)) strcat(out, ".0");
    if (spec->type == '%') strcat(out, "%");
}

// Adds the number with its sign, prefix and padding.
static void add_number(struct run *run, struct text *text, struct value v, const struct spec *spec)
{
    char digits[1024], sign[4] = "";
    double d = 0;
    int64_t i = 0;
    bool real = v.kind == KIND_FLOAT || (spec->type && strchr("eEfFgG%", spec->type));
    if (real)
        value_number(v, &d);
    else
        value_integer(v, &i);
    bool negative = real ? signbit(d) && !isnan(d) : i < 0;
    if (real)
        float_digits(digits, sizeof digits, d, spec);
    else
        integer_digits(digits, sizeof digits, i, spec);
    if (spec->grouped)
        group_digits(digits, sizeof digits, spec->group, spec->type && strchr("xXob", spec->type) ? 4 : 3);
    size_t n = 0;
    if (negative || spec->sign == '+' || spec->sign == ' ') sign[n++] = negative ? '-' : spec->sign;
    if (spec->alternate && spec->type && strchr("xXob", spec->type)) sign[n++] = '0', sign[n++] = spec->type;
    int64_t missing = spec->width - (int64_t)(n + strlen(digits));
    char align = spec->align ? spec->align : '>';
    int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    int64_t between = align == '=' ? missing : 0;
    for (int64_t k = 0; k < before; k++)
        text_add_string(run, text, spec->fill);
    text_add(run, text, sign, n, v.tag);
    for (int64_t k = 0; k < between; k++)
        text_add_string(run, text, spec->fill);
    text_add(run, text, digits, strlen(digits), v.tag);
    for (int64_t k = before + between; k < missing; k++)
        text_add_string(run, text, spec->fill);
}

static void add_text(struct run *run, struct text *text, struct value v, const struct spec *spec, char align)
{
    const struct string *s = v.string;
    size_t end = spec->precision < 0 ? s->n : utf8_offset(s->data, s->n, (size_t)spec->precision);
    v = value_part(run, v, 0, end);
    int64_t missing = spec->width - (int64_t)value_length(run, v);
    if (spec->align) align = spec->align;
    int64_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    for (int64_t k = 0; k < before; k++)
        text_add_string(run, text, spec->fill);
    text_add_string(run, text, v.string);
    for (int64_t k = before > 0 ? before : 0; k < missing; k++)
        text_add_string(run, text, spec->fill);
}

static int64_t read_digits(struct run *run, const struct string *s, size_t *at, int64_t most)
{
    int64_t n = 0;
    for (; *at < s->n && s->data[*at] >= '0' && s->data[*at] <= '9'; (*at)++) {
        n = 10 * n + s->data[*at] - '0';
        if (n > most) run_fail(run, "a width or precision in a format is over %lld", (long long)most);
    }
    return n;
}

// ---- "%".

struct percent {
    struct run *run;
    const struct string *format;
    struct text *text;
    struct value arguments;
    size_t at, used; // position in the format; number of used arguments
    bool named;      // an argument was used by its name
    bool safe;       // the format is Markup: arguments are escaped
};

static struct value next_argument(struct percent *p)
{
    if (p->arguments.kind == KIND_TUPLE) {
        if (p->used < p->arguments.list->n) return p->arguments.list->items[p->used++];
    } else if (p->used++ == 0) {
        return p->arguments;
    }
    run_fail(p->run, "not enough arguments for format string");
}

static struct value named_argument(struct percent *p)
{
    size_t from = ++p->at;
    struct value v;
    const char *close = memchr(p->format->data + from, ')', p->format->n - from);
    if (!close) run_fail(p->run, "incomplete format key");
    if (p->arguments.kind != KIND_DICT) run_fail(p->run, "format requires a mapping");
    size_t to = (size_t)(close - p->format->data);
    struct value key = value_bytes(p->run, p->format->data + from, to - from);
    if (!dict_get(p->run, p->arguments.dict, key, &v)) run_fail(p->run, "%s", value_repr_short(p->run, key));
    p->at = to + 1;
    p->named = true;
    return v;
}

static void read_flags(struct percent *p, struct spec *spec)
{
    for (; p->at < p->format->n; p->at++) {
        char c = p->format->data[p->at];
        if (c == '-')
            spec->align = '<';
        else if (c == '0' && spec->align != '<')
            spec->align = '=';
        else if (c == '+' || (c == ' ' && spec->sign != '+'))
            spec->sign = c;
        else if (c == '#')
            spec->alternate = true;
        else if (c != '0' && c != ' ')
            return;
    }
}

static int64_t star_or_digits(struct percent *p, int64_t most)
{
    int64_t n;
    if (p->at >= p->format->n || p->format->data[p->at] != '*') return read_digits(p->run, p->format, &p->at, most);
    p->at++;
    if (!value_integer(next_argument(p), &n)) run_fail(p->run, "* wants int");
    if (n < 0 || n > most) run_fail(p->run, "a width or precision in a format is over %lld", (long long)most);
    return n;
}

static void add_percent_number(struct percent *p, struct value v, struct spec *spec)
{
    double d;
    if (v.kind == KIND_UNDEFINED) undefined_fail(p->run, v);
    if (!value_number(v, &d))
        run_fail(p->run, "%%%c format: a real number is required, not %s", spec->type, value_type(v));
    if (strchr("diuxXo", spec->type)) {
        if (v.kind == KIND_FLOAT) {
            if (!(fabs(d) < 9.2e18) || spec->type == 'x' || spec->type == 'X' || spec->type == 'o')
                run_fail(p->run, "%%%c format: an integer is required, not float", spec->type);
            v = value_tagged(value_int((int64_t)d), v, v);
        }
        if (strchr("diu", spec->type)) spec->type = 'd';
    }
    spec->fill = value_string(p->run, spec->align == '=' ? "0" : " ").string;
    add_number(p->run, p->text, v, spec);
}

static void add_percent_text(struct percent *p, struct value v, struct spec *spec)
{
    struct text *repr = text_new(p->run, 0);
    if (spec->type == 's') {
        v = value_str(p->run, v);
    } else {
        text_add_repr(p->run, repr, v);
        v = value_text(p->run, repr);
    }
    if (p->safe) v = string_escape(p->run, v);
    if (spec->align == '=') spec->align = '>';
    spec->fill = value_string(p->run, " ").string;
    add_text(p->run, p->text, v, spec, '>');
}

static void add_percent_field(struct percent *p)
{
    struct spec spec = {.precision = -1};
    struct value v = value_missing;
    if (p->at < p->format->n && p->format->data[p->at] == '(') v = named_argument(p);
    read_flags(p, &spec);
    spec.width = star_or_digits(p, WIDTH_MAX);
    if (p->at < p->format->n && p->format->data[p->at] == '.') {
        p->at++;
        spec.precision = star_or_digits(p, PRECISION_MAX);
    }
    while (p->at < p->format->n && p->format->data[p->at] && strchr("hlL", p->format->data[p->at]))
        p->at++;
    if (p->at >= p->format->n) run_fail(p->run, "incomplete format");
    spec.type = p->format->data[p->at++];
    if (spec.type == '%') {
        text_add(p->run, p->text, "%", 1, JINJA_TEMPLATE);
        return;
    }
    if (!spec.type || !strchr("srcdiuxXoeEfFgGa", spec.type))
        run_fail(p->run, "unsupported format character '%c' (0x%x)",
                 spec.type >= 32 && spec.type < 127 ? spec.type : '?', (unsigned char)spec.type);
    if (v.kind == KIND_MISSING) v = next_argument(p);
    if (spec.type == 'c' && v.kind == KIND_STRING) spec.type = 's';
    if (strchr("sra", spec.type))
        add_percent_text(p, v, &spec);
    else if (spec.type == 'c')
        run_fail(p->run, "%%c requires a character");
    else
        add_percent_number(p, v, &spec);
}

struct value string_percent(struct run *run, struct value format, struct value arguments)
{
    const struct string *s = format.string;
    struct percent p = {.run = run, .format = s, .text = text_new(run, s->n + 32), .arguments = arguments};
    p.safe = format.safe;
    while (p.at < s->n) {
        const char *percent = memchr(s->data + p.at, '%', s->n - p.at);
        size_t until = percent ? (size_t)(percent - s->data) : s->n;
        text_add_string(run, p.text, value_part(run, format, p.at, until).string);
        p.at = until + 1;
        if (percent) add_percent_field(&p);
    }
    bool all = arguments.kind == KIND_TUPLE ? p.used == arguments.list->n : p.used > 0;
    bool container = arguments.kind == KIND_DICT || arguments.kind == KIND_LIST || arguments.kind == KIND_UNDEFINED;
    if (!all && !container && !p.named) run_fail(run, "not all arguments converted during string formatting");
    struct value v = value_text(run, p.text);
    v.safe = format.safe;
    return v;
}

// ---- "{}".

struct braces {
    struct run *run;
    struct value format;
    struct text *text;
    const struct arguments *arguments;
    size_t next; // index of the next positional argument
    bool numbered, automatic;
};

static struct value positional(struct braces *b, size_t i)
{
    if (i >= b->arguments->n) run_fail(b->run, "Replacement index %zu out of range for positional args tuple", i);
    return b->arguments->values[i];
}

static struct value first_name(struct braces *b, struct value name)
{
    int64_t i;
    struct value v;
    if (!name.string->n) {
        b->automatic = true;
        if (b->numbered) run_fail(b->run, "cannot switch from manual field specification to automatic field numbering");
        return positional(b, b->next++);
    }
    if (integer_parse(b->run, name.string, 10, &i) && i >= 0) {
        b->numbered = true;
        if (b->automatic)
            run_fail(b->run, "cannot switch from automatic field numbering to manual field specification");
        return positional(b, (size_t)i);
    }
    if (!b->arguments->named || !dict_get(b->run, b->arguments->named, name, &v))
        run_fail(b->run, "%s", value_repr_short(b->run, name));
    return v;
}

// Returns the value of "name.attribute[element]".
static struct value field_value(struct braces *b, struct value field)
{
    const struct string *s = field.string;
    size_t at = 0;
    while (at < s->n && s->data[at] != '.' && s->data[at] != '[')
        at++;
    struct value v = first_name(b, value_part(b->run, field, 0, at));
    while (at < s->n) {
        bool attribute = s->data[at++] == '.';
        size_t from = at;
        while (at < s->n && (attribute ? s->data[at] != '.' && s->data[at] != '[' : s->data[at] != ']'))
            at++;
        struct value name = value_part(b->run, field, from, at);
        int64_t i;
        if (attribute)
            v = value_attribute(b->run, v, name.string, method_find(name.string->data, name.string->n));
        else
            v = value_item(b->run, v, integer_parse(b->run, name.string, 10, &i) ? value_int(i) : name);
        if (!attribute && at++ >= s->n) run_fail(b->run, "Missing ']' in format string");
    }
    return v;
}

static struct spec read_spec(struct braces *b, struct value text)
{
    struct spec spec = {.precision = -1, .fill = value_string(b->run, " ").string};
    const struct string *s = text.string;
    size_t at = 0, length = 0;
    if (s->n) utf8_get(s->data, &length);
    if (s->n > length && s->data[length] && strchr("<>=^", s->data[length])) {
        spec.fill = value_part(b->run, text, 0, length).string;
        spec.align = s->data[length];
        at = length + 1;
    } else if (s->n && s->data[0] && strchr("<>=^", s->data[0])) {
        spec.align = s->data[at++];
    }
    if (at < s->n && s->data[at] && strchr("+- ", s->data[at])) spec.sign = s->data[at++];
    if (at < s->n && s->data[at] == '#') spec.alternate = true, at++;
    if (at < s->n && s->data[at] == '0') {
        if (!spec.align) spec.align = '=', spec.fill = value_string(b->run, "0").string;
        at++;
    }
    spec.width = read_digits(b->run, s, &at, WIDTH_MAX);
    if (at < s->n && (s->data[at] == ',' || s->data[at] == '_')) spec.grouped = true, spec.group = s->data[at++];
    if (at < s->n && s->data[at] == '.') {
        at++;
        spec.precision = read_digits(b->run, s, &at, PRECISION_MAX);
    }
    if (at < s->n) spec.type = s->data[at++];
    if (at < s->n) run_fail(b->run, "Invalid format specifier %s", value_repr_short(b->run, text));
    return spec;
}

static void add_formatted(struct braces *b, struct value v, struct value text)
{
    if (!text.string->n) {
        text_add_value(b->run, b->text, v);
        return;
    }
    struct spec spec = read_spec(b, text);
    bool number = v.kind == KIND_INT || v.kind == KIND_FLOAT || (v.kind == KIND_BOOL && spec.type);
    if (v.kind != KIND_STRING && v.kind != KIND_BOOL && !number)
        run_fail(b->run, "unsupported format string passed to %s.__format__", value_type(v));
    const char *allowed = !number ? "s" : v.kind == KIND_FLOAT ? "eEfFgG%n" : "bcdoxXneEfFgG%";
    if (spec.type && (!strchr(allowed, spec.type) || spec.type == 'c' || spec.type == 'n'))
        run_fail(b->run, "Unknown format code '%c' for object of type '%s'", spec.type & 0x80 ? '?' : spec.type,
                 value_type(v));
    if (number && spec.type == 'd') spec.type = 0;
    if (number)
        add_number(b->run, b->text, v, &spec);
    else
        add_text(b->run, b->text, value_str(b->run, v), &spec, '<');
}

static void braces_add(struct braces *b);

// Adds the field between the braces.
static void add_field(struct braces *b, struct value field)
{
    const struct string *s = field.string;
    const char *colon = s->n ? memchr(s->data, ':', s->n) : NULL;
    size_t name_n = colon ? (size_t)(colon - s->data) : s->n;
    char conversion = 0;
    if (name_n >= 2 && s->data[name_n - 2] == '!') {
        conversion = s->data[name_n - 1];
        name_n -= 2;
    }
    struct value v = field_value(b, value_part(b->run, field, 0, name_n));
    if (conversion == 'r' || conversion == 'a') {
        struct text *repr = text_new(b->run, 0);
        text_add_repr(b->run, repr, v);
        v = value_text(b->run, repr);
    } else if (conversion == 's') {
        v = value_str(b->run, v);
    } else if (conversion) {
        run_fail(b->run, "Unknown conversion specifier in a format");
    }
    struct value spec = value_part(b->run, field, colon ? (size_t)(colon - s->data) + 1 : s->n, s->n);
    if (spec.string->n && memchr(spec.string->data, '{', spec.string->n)) { // the width is a field, too
        struct braces inner = *b;
        inner.format = spec;
        inner.text = text_new(b->run, 0);
        braces_add(&inner);
        b->next = inner.next;
        spec = value_text(b->run, inner.text);
    }
    if (b->format.safe) v = string_escape(b->run, value_str(b->run, v));
    add_formatted(b, v, spec);
}

// Returns the position of the closing brace of the field that starts at `from`.
static size_t field_end(struct braces *b, size_t from)
{
    const struct string *s = b->format.string;
    int depth = 0;
    for (size_t at = from; at < s->n; at++) {
        depth += s->data[at] == '{';
        if (s->data[at] == '}' && depth-- == 0) return at;
    }
    run_fail(b->run, "expected '}' before end of string");
}

static void braces_add(struct braces *b)
{
    const struct string *s = b->format.string;
    run_enter(b->run);
    for (size_t at = 0, from = 0; at <= s->n; at++) {
        bool brace = at < s->n && (s->data[at] == '{' || s->data[at] == '}');
        if (at < s->n && !brace) continue;
        text_add_string(b->run, b->text, value_part(b->run, b->format, from, at).string);
        if (at == s->n) break;
        if (at + 1 < s->n && s->data[at + 1] == s->data[at]) { // {{ or }}
            text_add_string(b->run, b->text, value_part(b->run, b->format, at, at + 1).string);
            at++;
        } else if (s->data[at] == '}') {
            run_fail(b->run, "Single '}' encountered in format string");
        } else {
            size_t end = field_end(b, at + 1);
            add_field(b, value_part(b->run, b->format, at + 1, end));
            at = end;
        }
        from = at + 1;
    }
    b->run->depth--;
}

struct value string_format(struct run *run, struct value format, const struct arguments *arguments)
{
    struct braces b = {
        .run = run, .format = format, .text = text_new(run, format.string->n + 32), .arguments = arguments};
    braces_add(&b);
    struct value v = value_text(run, b.text);
    v.safe = format.safe;
    return v;
}
