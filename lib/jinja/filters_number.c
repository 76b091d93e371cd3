// SPDX-License-Identifier: Apache-2.0
// Filters of numbers, and conversions of text to numbers.
#include "lib/jinja/filters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct value filter_abs(struct run *run, struct call *call)
{
    int64_t i;
    struct value v = call->self;
    if (v.kind == KIND_FLOAT) return value_tagged(value_float(fabs(v.number)), v, v);
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_integer(v, &i)) run_fail(run, "bad operand type for abs(): '%s'", value_type(v));
    if (i == INT64_MIN) run_fail(run, "integers over 64 bits are not supported");
    return value_tagged(value_int(i < 0 ? -i : i), v, v);
}

// Parses a text as Python's float() does.
static bool number_parse(struct run *run, const struct string *s, double *number_p)
{
    char digits[400];
    size_t n = 0, from = 0, to = s->n;
    run_spend(run, s->n / 16); // pays for skipping blanks
    while (from < to && char_is_space(s->data[from]))
        from++;
    while (to > from && char_is_space(s->data[to - 1]))
        to--;
    if (from == to || to - from >= sizeof digits) return false;
    for (size_t i = from; i < to; i++) {
        char c = s->data[i];
        if (c == '_') continue;
        if (!c || !strchr("0123456789+-.eEinftyaINFTYA", c)) return false;
        digits[n++] = c;
    }
    digits[n] = 0;
    char *end;
    *number_p = strtod(digits, &end);
    return end != digits && !*end && !strpbrk(digits, "xX");
}

bool integer_parse(struct run *run, const struct string *s, int base, int64_t *integer_p)
{
    char digits[80];
    size_t n = 0, from = 0, to = s->n;
    run_spend(run, s->n / 16); // pays for skipping blanks
    while (from < to && char_is_space(s->data[from]))
        from++;
    while (to > from && char_is_space(s->data[to - 1]))
        to--;
    if (from == to || to - from >= sizeof digits) return false;
    for (size_t i = from; i < to; i++)
        if (s->data[i] != '_') digits[n++] = s->data[i];
    digits[n] = 0;
    const char *at = digits + (digits[0] == '+' || digits[0] == '-');
    if (*at == '+' || *at == '-' || char_is_space(*at)) return false;
    if (at[0] == '0' && ((base == 2 && (at[1] | 0x20) == 'b') || (base == 8 && (at[1] | 0x20) == 'o')))
        memmove(digits + (at - digits), at + 2, strlen(at + 2) + 1);
    char *end;
    long long i = strtoll(digits, &end, base);
    if (end == digits || *end || i == INT64_MAX || i == INT64_MIN) return false;
    *integer_p = i;
    return true;
}

static bool float_to_integer(double d, int64_t *integer_p)
{
    if (!(d > -9.2e18 && d < 9.2e18)) return false;
    *integer_p = (int64_t)d;
    return true;
}

static struct value filter_int(struct run *run, struct call *call)
{
    struct value v = call->self;
    int64_t i = 0, base = call_integer(run, call, 1, 10);
    double d;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    bool ok = v.kind == KIND_STRING && base >= 2 && base <= 36 ? integer_parse(run, v.string, (int)base, &i)
                                                               : value_integer(v, &i);
    if (!ok && v.kind == KIND_FLOAT) ok = float_to_integer(v.number, &i);
    if (!ok && v.kind == KIND_STRING) ok = number_parse(run, v.string, &d) && float_to_integer(d, &i);
    if (ok) return value_tagged(value_int(i), v, v);
    return call->at[0].kind == KIND_MISSING ? value_int(0) : call->at[0];
}

static struct value filter_float(struct run *run, struct call *call)
{
    struct value v = call->self;
    double d;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (value_number(v, &d) || (v.kind == KIND_STRING && number_parse(run, v.string, &d)))
        return value_tagged(value_float(d), v, v);
    return call->at[0].kind == KIND_MISSING ? value_float(0) : call->at[0];
}

// Rounds like Python's round(): exactly, to the nearest number, halves to even.
static double round_decimals(double d, int64_t precision)
{
    char out[512];
    if (!isfinite(d) || precision > 100) return d;
    if (precision < -308) return copysign(0, d);
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return rint(d / scale) * scale;
    }
    snprintf(out, sizeof out, "%.*f", (int)precision, d);
    return strtod(out, NULL);
}

// Rounds to a multiple of 10^digits, halves to even.
static int64_t round_integer(struct run *run, int64_t i, int64_t digits)
{
    enum { DIGITS_MAX = 18 }; // digits of a power of ten that fits 64 bits
    const int64_t half_of_19_digits = INT64_C(5000000000000000000);
    int64_t scale = 1, rounded;
    bool over = digits == DIGITS_MAX + 1 && (i > half_of_19_digits || i < -half_of_19_digits);
    if (digits > DIGITS_MAX && !over) return 0;
    for (int64_t n = 0; n < digits && !over; n++)
        scale *= 10;
    int64_t quotient = i / scale, twice = 2 * (i % scale);
    if (twice > scale || (twice == scale && quotient % 2)) quotient++;
    if (twice < -scale || (twice == -scale && quotient % 2)) quotient--;
    if (over || __builtin_mul_overflow(quotient, scale, &rounded))
        run_fail(run, "integers over 64 bits are not supported");
    return rounded;
}

static struct value filter_round(struct run *run, struct call *call)
{
    struct value v = call->self,
                 method = call->at[1].kind == KIND_MISSING ? value_string(run, "common") : call_text(run, call, 1);
    int64_t precision = call_integer(run, call, 0, 0), i;
    double d, scale = pow(10, (double)precision);
    bool common = value_is(method, "common"), up = value_is(method, "ceil");
    if (!common && !up && !value_is(method, "floor")) run_fail(run, "method must be common, ceil or floor");
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_number(v, &d)) run_fail(run, "type %s doesn't define __round__ method", value_type(v));
    if (!common) return value_tagged(value_float((up ? ceil(d * scale) : floor(d * scale)) / scale), v, v);
    if (!value_integer(v, &i)) return value_tagged(value_float(round_decimals(d, precision)), v, v);
    return value_tagged(value_int(precision < 0 ? round_integer(run, i, precision < -20 ? 20 : -precision) : i), v, v);
}

static struct value filter_filesizeformat(struct run *run, struct call *call)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}, *const binary[] = {
                                                                                               "KiB", "MiB", "GiB",
                                                                                               "TiB", "PiB", "EiB",
                                                                                               "ZiB", "YiB"};
    static const double powers[] = {1e6, 1e9, 1e12, 1e15, 1e18, 1e21, 1e24, 1e27}; // as exact as Python's
    enum { UNITS = sizeof powers / sizeof *powers };
    struct value v = call->self;
    bool is_binary = call_flag(run, call, 0);
    double bytes, base = is_binary ? 1024 : 1000, unit = 0;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_number(v, &bytes) && !(v.kind == KIND_STRING && number_parse(run, v.string, &bytes)))
        run_fail(run, "could not convert %s to float", value_repr_short(run, v));
    char out[400];
    if (bytes < base) {
        if (isinf(bytes)) run_fail(run, "cannot convert float infinity to integer");
        snprintf(out, sizeof out, bytes == 1 ? "%.0f Byte" : "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        int i = 0;
        for (; i < UNITS; i++) {
            unit = is_binary ? ldexp(1, 10 * (i + 2)) : powers[i];
            if (bytes < unit) break;
        }
        snprintf(out, sizeof out, "%.1f %s", base * bytes / unit,
                 (is_binary ? binary : decimal)[i < UNITS ? i : UNITS - 1]);
    }
    struct text *text = text_new(run, sizeof out);
    text_add(run, text, out, strlen(out), value_tag(v));
    return value_text(run, text);
}

const struct function number_filters[] = {
    {"abs", filter_abs, 0, ""},
    {"filesizeformat", filter_filesizeformat, 0, "binary"},
    {"float", filter_float, 0, "default"},
    {"int", filter_int, 0, "default base"},
    {"round", filter_round, 0, "precision method"},
    {0},
};
