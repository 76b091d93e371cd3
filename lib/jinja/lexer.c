// SPDX-License-Identifier: Apache-2.0
// Splits a template into tokens with trim_blocks and lstrip_blocks: removes the first newline after a block, and blanks
// between the start of a line and a block.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/jinja/syntax.h"

struct lexer {
    struct run *run;
    const char *source;
    size_t n, at;
    bool line_starts; // the text before `at` ends with a newline, or is empty
    struct token *tokens;
    size_t n_tokens, capacity;
    char open[256]; // brackets that are not closed yet
    int n_open;
};

static void token_add(struct lexer *lx, struct token token)
{
    token.line = lx->run->line;
    HEAP_GROW(lx->run, lx->tokens, lx->n_tokens, lx->capacity);
    lx->tokens[lx->n_tokens++] = token;
}

static void count_lines(struct lexer *lx, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        lx->run->line += lx->source[i] == '\n';
}

static char peek(const struct lexer *lx, size_t ahead)
{
    return lx->at + ahead < lx->n ? lx->source[lx->at + ahead] : 0;
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
    for (size_t length; at < lx->n; at += length)
        if (!char_is_space(utf8_get(lx->source + at, &length))) break;
    return at;
}

static bool is_name_byte(char c)
{
    return (c & 0x80) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Returns the end of the tag if `close` (such as "%}") is at `at`, after an optional sign. Returns 0 if it is not.
static size_t tag_end(const struct lexer *lx, size_t at, const char *close, bool plus, bool trims)
{
    char sign = at < lx->n ? lx->source[at] : 0;
    size_t from = at + (sign == '-' || (plus && sign == '+'));
    if (from + 2 > lx->n || memcmp(lx->source + from, close, 2) != 0) return 0;
    if (from > at && sign == '-') return skip_space(lx, from + 2);
    return from + 2 + (from == at && trims && from + 2 < lx->n && lx->source[from + 2] == '\n');
}

static void tag_leave(struct lexer *lx, size_t end)
{
    count_lines(lx, lx->at, end);
    lx->line_starts = end > 0 && lx->source[end - 1] == '\n';
    lx->at = end;
}

// Adds text [from, to) before a tag with this sign.
static void data_add(struct lexer *lx, size_t from, size_t to, char sign, bool lstrip)
{
    size_t end = to, length;
    if (sign == '-') {
        while (end > from) {
            size_t before = end - 1;
            while ((lx->source[before] & 0xC0) == 0x80)
                before--;
            if (!char_is_space(utf8_get(lx->source + before, &length))) break;
            end = before;
        }
    } else if (sign != '+' && lstrip) {
        size_t line = to;
        while (line > from && lx->source[line - 1] != '\n')
            line--;
        if ((line > from || lx->line_starts) && skip_space(lx, line) >= to) end = line;
    }
    if (end > from) token_add(lx, (struct token){.type = TOKEN_DATA, .data = lx->source + from, .n = end - from});
    count_lines(lx, from, to);
}

// ---- Inside tags.

static void add_utf8(struct lexer *lx, struct text *text, long c)
{
    char out[4];
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) run_fail(lx->run, "a string has a character that does not exist");
    text_add(lx->run, text, out, (size_t)utf8proc_encode_char((int32_t)c, (utf8proc_uint8_t *)out), JINJA_TEMPLATE);
}

// Adds the character of \ooo, \xHH, \uHHHH or \UHHHHHHHH at `at`.
static size_t numeric_escape(struct lexer *lx, struct text *text, const char *at, const char *end)
{
    char kind = *at, digits[9] = "";
    int most = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 3, base = most == 3 ? 8 : 16, n = 0;
    const char *from = base == 8 ? at : at + 1;
    const char *allowed = base == 8 ? "01234567" : "0123456789abcdefABCDEF";
    while (n < most && from + n < end && from[n] && strchr(allowed, from[n])) {
        digits[n] = from[n];
        n++;
    }
    if (base == 16 && n < most) run_fail(lx->run, "a string has an incomplete \\%c escape", kind);
    add_utf8(lx, text, strtol(digits, NULL, base));
    return (size_t)(from - at) + (size_t)n;
}

static void unescape(struct lexer *lx, const char *data, size_t n)
{
    static const char plain[] = "nrtbfav\\'\"", meaning[] = "\n\r\t\b\f\a\v\\'\"";
    struct text *text = text_new(lx->run, n);
    for (size_t i = 0; i < n;) {
        const char *slash = memchr(data + i, '\\', n - i);
        size_t until = slash ? (size_t)(slash - data) : n;
        text_add(lx->run, text, data + i, until - i, JINJA_TEMPLATE);
        i = until + 1;
        if (i >= n) break;
        const char *known = data[i] ? strchr(plain, data[i]) : NULL;
        if (known)
            text_add(lx->run, text, &meaning[known - plain], 1, JINJA_TEMPLATE), i++;
        else if (data[i] == '\n')
            i++;
        else if ((data[i] >= '0' && data[i] <= '7') || data[i] == 'x' || data[i] == 'u' || data[i] == 'U')
            i += numeric_escape(lx, text, data + i, data + n);
        else
            text_add(lx->run, text, "\\", 1, JINJA_TEMPLATE);
    }
    token_add(lx, (struct token){.type = TOKEN_STRING, .data = text->data ? text->data : "", .n = text->used});
}

static void read_string(struct lexer *lx)
{
    char quote = peek(lx, 0);
    size_t end = lx->at + 1;
    while (end < lx->n && lx->source[end] != quote)
        end += lx->source[end] == '\\' ? 2 : 1;
    if (end >= lx->n) run_fail(lx->run, "unexpected char '%c': the string does not end", quote);
    unescape(lx, lx->source + lx->at + 1, end - lx->at - 1);
    count_lines(lx, lx->at, end + 1);
    lx->at = end + 1;
}

// Returns the end of the digits of `base` at `at`, which may have _ between them.
static size_t digits_end(const struct lexer *lx, size_t at, int base)
{
    const char *allowed = base == 2    ? "01"
                          : base == 8  ? "01234567"
                          : base == 10 ? "0123456789"
                                       : "0123456789abcdefABCDEF";
    size_t from = at;
    while (at < lx->n && lx->source[at] &&
           (strchr(allowed, lx->source[at]) || (lx->source[at] == '_' && (at > from || base != 10) && at + 1 < lx->n &&
                                                lx->source[at + 1] && strchr(allowed, lx->source[at + 1]))))
        at++;
    return at;
}

static size_t exponent_end(const struct lexer *lx, size_t at)
{
    if (at >= lx->n || (lx->source[at] | 0x20) != 'e') return at;
    size_t from = at + 1;
    if (from < lx->n && (lx->source[from] == '+' || lx->source[from] == '-')) from++;
    size_t end = digits_end(lx, from, 10);
    return end > from ? end : at;
}

static void read_number(struct lexer *lx)
{
    size_t at = lx->at;
    char prefix = (char)(peek(lx, 1) | 0x20);
    int base = peek(lx, 0) != '0' ? 10 : prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    size_t end = base == 10 ? digits_end(lx, at, 10) : digits_end(lx, at + 2, base);
    if (base != 10 && end == at + 2) base = 10, end = at + 1;
    bool real = false;
    if (base == 10 && (at == 0 || lx->source[at - 1] != '.')) {
        size_t fraction = end;
        if (end + 1 < lx->n && lx->source[end] == '.' && is_digit(lx->source[end + 1]))
            fraction = digits_end(lx, end + 1, 10);
        size_t exponent = exponent_end(lx, fraction);
        real = exponent > end;
        end = exponent;
    }
    char *digits = heap_alloc(lx->run, end - at + 1), *to = digits, *stop;
    for (size_t i = base == 10 ? at : at + 2; i < end; i++)
        if (lx->source[i] != '_') *to++ = lx->source[i];
    errno = 0;
    struct value v = real ? value_float(strtod(digits, &stop)) : value_int(strtoll(digits, &stop, base));
    if (!real && errno) run_fail(lx->run, "the integer %.40s is too large", digits);
    token_add(lx, (struct token){real ? TOKEN_FLOAT : TOKEN_INTEGER, 0, lx->source + at, end - at, v});
    lx->at = end;
}

static void check_bracket(struct lexer *lx, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (lx->n_open == sizeof lx->open)
            run_fail(lx->run, "brackets nested more than %zu levels deep", sizeof lx->open);
        lx->open[lx->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!lx->n_open) run_fail(lx->run, "unexpected '%c'", c);
        char due = lx->open[--lx->n_open];
        if (due != c) run_fail(lx->run, "unexpected '%c', expected '%c'", c, due);
    }
}

static void read_operator(struct lexer *lx)
{
    static const char *const longer[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *at = lx->source + lx->at;
    size_t n = *at && strchr("+-/*%~[](){}><=.:|,;", *at) ? 1 : 0, length;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (lx->n - lx->at >= 2 && !memcmp(at, longer[i], 2)) n = 2;
    if (!n) {
        utf8_get(at, &length);
        run_fail(lx->run, "unexpected char '%.*s'", (int)length, at);
    }
    if (n == 1) check_bracket(lx, *at);
    token_add(lx, (struct token){.type = TOKEN_OPERATOR, .data = at, .n = n});
    lx->at += n;
}

static void read_name(struct lexer *lx)
{
    size_t end = lx->at;
    while (end < lx->n && is_name_byte(lx->source[end]))
        end++;
    token_add(lx, (struct token){.type = TOKEN_NAME, .data = lx->source + lx->at, .n = end - lx->at});
    lx->at = end;
}

static void read_code(struct lexer *lx, bool block)
{
    lx->n_open = 0;
    while (lx->at < lx->n) {
        size_t space = skip_space(lx, lx->at);
        // Look for the end first, because it may begin with blanks.
        size_t end = lx->n_open ? 0 : tag_end(lx, lx->at, block ? "%}" : "}}", block, block);
        if (end) {
            token_add(lx, (struct token){.type = block ? TOKEN_BLOCK_END : TOKEN_PRINT_END});
            tag_leave(lx, end);
            return;
        }
        char c = lx->source[lx->at];
        if (space > lx->at) {
            count_lines(lx, lx->at, space);
            lx->at = space;
        } else if (is_digit(c)) {
            read_number(lx);
        } else if (is_name_byte(c)) {
            read_name(lx);
        } else if (c == '\'' || c == '"') {
            read_string(lx);
        } else {
            read_operator(lx);
        }
    }
    run_fail(lx->run, "unexpected end of template: a tag is not closed");
}

// ---- Outside tags.

static void skip_comment(struct lexer *lx, size_t from)
{
    if (from >= lx->n) { // the source ends here, and Jinja then accepts that the end tag is missing
        lx->at = lx->n;
        return;
    }
    const char *close = from <= lx->n ? memmem(lx->source + from, lx->n - from, "#}", 2) : NULL;
    if (!close) run_fail(lx->run, "Missing end of comment tag");
    size_t at = (size_t)(close - lx->source);
    if (at > from && (lx->source[at - 1] == '-' || lx->source[at - 1] == '+')) at--;
    tag_leave(lx, tag_end(lx, at, "#}", true, true));
}

// Returns the end of the block at `at` if it is {% word %}, with the signs before and after, else 0.
static size_t word_block(const struct lexer *lx, size_t at, const char *word, bool begins)
{
    size_t n = strlen(word), from = at + 2;
    if (from < lx->n && (lx->source[from] == '-' || lx->source[from] == '+')) from++;
    from = skip_space(lx, from);
    if (lx->n - from < n || memcmp(lx->source + from, word, n) != 0) return 0;
    return tag_end(lx, skip_space(lx, from + n), "%}", !begins, !begins);
}

static char tag_sign(const struct lexer *lx, size_t at)
{
    char sign = at + 2 < lx->n ? lx->source[at + 2] : 0;
    return sign == '-' || sign == '+' ? sign : 0;
}

static void read_raw(struct lexer *lx)
{
    if (lx->at >= lx->n) return; // the source ends here, and Jinja then accepts that the end tag is missing
    for (size_t at = lx->at; at + 1 < lx->n; at++) {
        size_t end = lx->source[at] == '{' && lx->source[at + 1] == '%' ? word_block(lx, at, "endraw", false) : 0;
        if (!end) continue;
        data_add(lx, lx->at, at, tag_sign(lx, at), true);
        lx->at = at;
        tag_leave(lx, end);
        return;
    }
    run_fail(lx->run, "Missing end of raw directive");
}

static size_t tag_find(const struct lexer *lx)
{
    for (size_t at = lx->at; at + 1 < lx->n; at++)
        if (lx->source[at] == '{' && strchr("%{#", lx->source[at + 1]) && lx->source[at + 1]) return at;
    return lx->n;
}

static void read_tag(struct lexer *lx, size_t at)
{
    char kind = lx->source[at + 1], sign = tag_sign(lx, at);
    data_add(lx, lx->at, at, sign, kind != '{');
    lx->at = at;
    size_t raw = kind == '%' ? word_block(lx, at, "raw", true) : 0;
    size_t inside = at + 2 + (sign != 0);
    if (raw) {
        tag_leave(lx, raw);
        read_raw(lx);
    } else if (kind == '#') {
        skip_comment(lx, inside);
    } else {
        token_add(lx, (struct token){.type = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN});
        lx->at = inside;
        read_code(lx, kind == '%');
    }
}

struct token *tokens_read(struct run *run, const char *source, size_t n)
{
    struct lexer lx = {.run = run, .source = source, .n = n, .line_starts = true};
    run->line = 1;
    while (lx.at < n) {
        size_t at = tag_find(&lx);
        if (at == n) {
            data_add(&lx, lx.at, n, '+', false);
            break;
        }
        read_tag(&lx, at);
    }
    token_add(&lx, (struct token){.type = TOKEN_END});
    return lx.tokens;
}
