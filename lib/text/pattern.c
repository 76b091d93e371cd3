// SPDX-License-Identifier: Apache-2.0
#include "lib/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/pattern_scan.h"
#include "lib/text/unicode.h"

#define PATTERN_LIMIT_BYTES 65536

// Limits, so that no pattern takes exponential or quadratic time, or unbounded memory. PCRE2's own limit does not bound
// the time: it starts again for each start of a match, and does not count loops over one class of characters. So the
// translation adds a callout, which matches nothing, at the start, after each "(" and after each quantifier. Every
// unbounded loop and every way of backtracking then has a callout. Work is the number of callouts plus the bytes
// between them. A callout or byte counts more in long patterns, since PCRE2 may search a whole class for each byte. It
// also counts more in patterns with large numbers in {n,m}, since the first n repetitions have no callouts. The
// patterns of GPT-2, Llama 3 and Qwen take at most 6 units of work for each byte of any text, and their memory does not
// depend on the text. A pattern such as (?:ab|c)+ takes about 120 bytes per repetition.
enum { WORK_MIN = 1000000, WORK_PER_BYTE = 64, WORK_SOURCE_BYTES = 1024, WORK_REPEATS = 64 };
#define REPEATS_MAX ((uint64_t)1 << 32)
enum { DEPTH_MAX = 10000000, HEAP_MAX_KIB = 256 << 10 };
#define CALLOUT "(?C)"

struct pattern {
    pcre2_code *code;                // NULL: a literal
    const struct pattern_scan *scan; // runs instead of `code`, or NULL
    char *source;
    size_t n;      // bytes of the literal
    uint64_t work; // units of work for each callout and each byte
};

struct pattern_scratch {
    uint64_t work, work_max;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

// ---- From Oniguruma's Ruby syntax to PCRE2's.

struct translation {
    const char *source;
    size_t n, at;
    // at_branch: at the start of a branch, which is the start of the pattern or follows "(" or "|"
    bool in_class, at_branch;
    uint64_t repeats; // product of the n of all {n} and {n,m}
    struct bytes out;
};

static void emit(struct translation *t, const char *text)
{
    bytes_add(&t->out, text, strlen(text));
}

static void emit_source(struct translation *t, size_t n)
{
    bytes_add(&t->out, t->source + t->at, n);
    t->at += n;
}

static bool source_at(const struct translation *t, const char *text)
{
    size_t n = strlen(text);
    return t->n - t->at >= n && !memcmp(t->source + t->at, text, n);
}

static enum status unsupported(const char *what)
{
    return status_fail(STATUS_UNSUPPORTED, "regular expression: %s is not supported", what);
}

// Returns true if the name is a script. Oniguruma's \p{Han} is the script property, while PCRE2's includes the script
// extensions.
static bool is_script(const char *name, size_t n)
{
    char source[80];
    int error;
    PCRE2_SIZE place;
    if (n > 40) return false;
    int length = snprintf(source, sizeof source, "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)source, (size_t)length, PCRE2_UTF, &error, &place, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

static enum status translate_property(struct translation *t)
{
    const char *open = t->source + t->at + 2;
    size_t left = t->n - t->at;
    const char *close = left > 3 && *open == '{' ? memchr(open, '}', left - 2) : NULL;
    if (!close) return unsupported("\\p without {name}");
    const char *name = open + 1;
    bool negated = *name == '^';
    name += negated;
    size_t n = (size_t)(close - name);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("_& -", name[i])) return unsupported("this \\p{name}");
    emit(t, t->source[t->at + 1] == 'P' ? "\\P{" : "\\p{");
    if (negated) emit(t, "^");
    if (is_script(name, n)) emit(t, "sc:");
    bytes_add(&t->out, name, n);
    emit(t, "}");
    t->at = (size_t)(close + 1 - t->source);
    return STATUS_OK;
}

static enum status translate_hexadecimal(struct translation *t)
{
    // \uHHHH, \x{H...} and \xHH. In Oniguruma \xHH is a byte, which is a character only below 80.
    const char *digits = t->source + t->at + 2;
    size_t left = t->n - t->at - 2, n = 0;
    if (source_at(t, "\\x{")) {
        digits++, left--;
        while (n < left && isxdigit((unsigned char)digits[n]))
            n++;
        if (n == 0 || n > 6 || n == left || digits[n] != '}') return unsupported("this \\x{...}");
    } else {
        size_t want = t->source[t->at + 1] == 'u' ? 4 : 2;
        while (n < want && n < left && isxdigit((unsigned char)digits[n]))
            n++;
        if (n < want || (want == 2 && *digits > '7')) return unsupported("this \\x or \\u");
    }
    emit(t, "\\x{");
    bytes_add(&t->out, digits, n);
    emit(t, "}");
    t->at = (size_t)(digits + n - t->source) + (source_at(t, "\\x{") ? 1 : 0);
    return STATUS_OK;
}

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
// Adds the characters that became Alphabetic in Unicode 15 and 16, which Oniguruma has. PCRE2 10.42 has Unicode 14.
#define ALPHABETIC                                                                                                     \
    "\\p{Alphabetic}\\x{363}-\\x{36F}\\x{C04}\\x{F82}\\x{F83}\\x{1DD3}-\\x{1DE6}\\x{11080}\\x{11081}\\p{Alphabetic}"

static enum status translate_escape(struct translation *t)
{
    char what[] = {'\\', t->n - t->at > 1 ? t->source[t->at + 1] : 0, 0};
    switch (what[1]) {
    case 0: return unsupported("a final backslash");
    case 's': emit(t, "\\p{White_Space}"); break;
    case 'S': emit(t, "\\P{White_Space}"); break;
    case 'd': emit(t, "\\p{Nd}"); break;
    case 'D': emit(t, "\\P{Nd}"); break;
    case 'w':
    case 'W':
        if (t->in_class && what[1] == 'W') return unsupported("\\W inside [...]");
        if (!t->in_class) emit(t, what[1] == 'W' ? "[^" : "[");
        emit(t, WORD);
        // Outside of [...], Oniguruma's \w also has the superscripts and fractions of Latin-1.
        if (!t->in_class) emit(t, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]");
        break;
    case 'v': emit(t, "\\x{0B}"); break;
    case 'n':
    case 'r':
    case 't':
    case 'f': emit(t, what); break;
    case 'p':
    case 'P': return translate_property(t);
    case 'x':
    case 'u': return translate_hexadecimal(t);
    default:
        if (isalnum((unsigned char)what[1])) return unsupported(what);
        if (!ispunct((unsigned char)what[1]) && what[1] != ' ') return unsupported("this escape");
        emit(t, what);
    }
    t->at += 2;
    return STATUS_OK;
}

static enum status translate_group(struct translation *t)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (source_at(t, "(?i)")) {
        // a(?i)b|c is a(?i:b|c) in Oniguruma, a(?i:b)|(?i:c) in PCRE2.
        if (!t->at_branch) return unsupported("(?i) after the start of a branch");
        emit_source(t, 4);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (source_at(t, known[i])) {
            emit_source(t, strlen(known[i]));
            return STATUS_OK;
        }
    if (source_at(t, "(?") || source_at(t, "(*")) return unsupported("this kind of (?...) group");
    emit_source(t, 1);
    return STATUS_OK;
}

// Translates [:name:] inside [...]. PCRE2's classes of these names have other characters than Oniguruma's. Each
// translation begins and ends with a \p, so that a neighbouring - makes no range.
static enum status translate_posix_class(struct translation *t)
{
    static const struct {
        const char *name, *pattern;
    } classes[] = {
        {"[:alpha:]", ALPHABETIC},
        {"[:alnum:]", ALPHABETIC "\\p{Nd}"},
        {"[:word:]", WORD},
        {"[:digit:]", "\\p{Nd}"},
        {"[:space:]", "\\p{White_Space}"},
        {"[:punct:]", "\\p{P}\\p{S}"},
        {"[:xdigit:]", "\\p{ASCII_Hex_Digit}"},
        {"[:ascii:]", "\\p{ASCII}"},
    };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (source_at(t, classes[i].name)) {
            emit(t, classes[i].pattern);
            t->at += strlen(classes[i].name);
            return STATUS_OK;
        }
    return unsupported("this [ or [:name:] inside [...]");
}

static enum status translate_class(struct translation *t)
{
    char c = t->source[t->at];
    if (c == '\\') return translate_escape(t);
    if (source_at(t, "&&")) return unsupported("&& inside [...]");
    if (c == '[') return translate_posix_class(t);
    if (c == ']') t->in_class = false;
    emit_source(t, 1);
    return STATUS_OK;
}

// Returns the length in bytes of the quantifier at t->at, or 0 if there is none.
static size_t quantifier_length(const struct translation *t)
{
    const char *c = t->source + t->at, *end = t->source + t->n;
    if (strchr("*+?", *c)) return c + 1 < end && strchr("?+", c[1]) ? 2 : 1;
    if (*c++ != '{' || c == end || !isdigit((unsigned char)*c)) return 0; // a "{" without a number is no quantifier
    while (c < end && (isdigit((unsigned char)*c) || *c == ','))
        c++;
    if (c == end || *c++ != '}' || (c < end && *c == '+')) return 0;
    return (size_t)(c - t->source) - t->at + (c < end && *c == '?');
}

// Returns true if the quantifier at t->at, which has `length` bytes, is {n}?.
static bool is_optional_count(const struct translation *t, size_t length)
{
    const char *c = t->source + t->at;
    return length && *c == '{' && c[length - 1] == '?' && !memchr(c, ',', length);
}

// Multiplies t->repeats by the number of the quantifier at t->at.
static void count_repeats(struct translation *t)
{
    if (t->source[t->at] != '{') return;
    uint64_t n = strtoul(t->source + t->at + 1, NULL, 10);
    if (n > REPEATS_MAX) n = REPEATS_MAX;
    if (n) t->repeats = t->repeats > REPEATS_MAX / n ? REPEATS_MAX : t->repeats * n;
}

static enum status translate(struct translation *t)
{
    emit(t, CALLOUT);
    while (t->at < t->n) {
        size_t quantifier = t->in_class ? 0 : quantifier_length(t);
        enum status status = STATUS_OK;
        char c = t->source[t->at];
        bool opens = !t->in_class && strchr("(|", c);
        if (t->in_class) {
            status = translate_class(t);
        } else if (c == '\\') {
            status = translate_escape(t);
        } else if (c == '(') {
            status = translate_group(t);
            emit(t, CALLOUT);
        } else if (c == '[') {
            t->in_class = true;
            emit_source(t, source_at(t, "[^") ? 2 : 1);
            if (t->at < t->n && t->source[t->at] == ']') status = unsupported("[] or [^]");
        } else if (source_at(t, "{,") || source_at(t, "}+")) {
            // Oniguruma reads 0 to n, and a repeated repetition. PCRE2 reads a literal, and a possessive repetition.
            status = unsupported("{,n} or {n,m}+");
        } else if (is_optional_count(t, quantifier)) {
            status = unsupported("{n}?"); // Oniguruma reads n times or not at all, PCRE2 n times
        } else if (quantifier) {
            count_repeats(t);
            emit_source(t, quantifier);
            emit(t, CALLOUT);
        } else {
            emit_source(t, 1);
        }
        if (status) return status;
        t->at_branch = opens;
    }
    return STATUS_OK;
}

static enum status pattern_compile(const struct bytes *source, pcre2_code **code_p)
{
    int error;
    PCRE2_SIZE place;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)(source->data ? source->data : ""), source->n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, context);
    pcre2_compile_context_free(context);
    if (!code) {
        char reason[160];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        return status_fail(STATUS_DATA, "regular expression: %s", reason);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // JIT may be missing on this machine: matching then works without it
    *code_p = code;
    return STATUS_OK;
}

// ---- Patterns.

enum status pattern_open_regex(const char *source, struct pattern **pattern_p)
{
    size_t n = strlen(source);
    if (n > PATTERN_LIMIT_BYTES)
        return status_fail(STATUS_DATA, "regular expression of %zu bytes: at most %d", n, PATTERN_LIMIT_BYTES);
    struct translation t = {.source = source, .n = n, .at_branch = true, .repeats = 1};
    pcre2_code *code = NULL;
    enum status status = translate(&t);
    if (status == STATUS_OK) status = pattern_compile(&t.out, &code);
    bytes_free(&t.out);
    if (status) return status;
    *pattern_p = mem_alloc(sizeof **pattern_p);
    **pattern_p = (struct pattern){.code = code,
                                   .scan = pattern_scan_find(source),
                                   .source = mem_string(source),
                                   .work = 1 + n / WORK_SOURCE_BYTES + t.repeats / WORK_REPEATS};
    return STATUS_OK;
}

enum status pattern_open_literal(const char *literal, struct pattern **pattern_p)
{
    size_t n = strlen(literal);
    if (n == 0) return status_fail(STATUS_DATA, "an empty pattern");
    *pattern_p = mem_alloc(sizeof **pattern_p);
    **pattern_p = (struct pattern){.source = mem_string(literal), .n = n};
    return STATUS_OK;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern->source);
    free(pattern);
}

const char *pattern_source(const struct pattern *pattern)
{
    return pattern->source;
}

size_t pattern_literal_length(const struct pattern *pattern)
{
    return pattern->n;
}

struct pattern_scratch *pattern_scratch_create(size_t n_bytes)
{
    struct pattern_scratch *scratch = mem_alloc(sizeof *scratch);
    scratch->work_max = WORK_MIN + (uint64_t)WORK_PER_BYTE * n_bytes;
    scratch->data = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    if (!scratch->data || !scratch->context) abort(); // out of memory: abort like lib/base/mem.h
    pcre2_set_match_limit(scratch->context, UINT32_MAX);
    pcre2_set_depth_limit(scratch->context, DEPTH_MAX);
    pcre2_set_heap_limit(scratch->context, HEAP_MAX_KIB);
    return scratch;
}

void pattern_scratch_free(struct pattern_scratch *scratch)
{
    if (!scratch) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    free(scratch);
}

struct pattern_walk pattern_walk_start(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text,
                                       size_t n)
{
    return (struct pattern_walk){.pattern = pattern, .scratch = scratch, .text = text, .n = n};
}

static int count_work(pcre2_callout_block *at, void *arg)
{
    struct pattern_walk *walk = arg;
    size_t position = at->current_position, last = walk->last_position;
    walk->scratch->work += (1 + (position > last ? position - last : last - position)) * walk->pattern->work;
    walk->last_position = position;
    return walk->scratch->work > walk->scratch->work_max ? PCRE2_ERROR_CALLOUT : 0;
}

enum status pattern_scratch_spend(struct pattern_scratch *scratch, size_t n_bytes)
{
    scratch->work += n_bytes;
    if (scratch->work <= scratch->work_max) return STATUS_OK;
    return status_fail(STATUS_INVALID, "the tokenizer's patterns, replacements and added tokens take too much work on "
                                       "this text");
}

static enum status match_refuse(int rc)
{
    char reason[160];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
    if (rc == PCRE2_ERROR_CALLOUT)
        return status_fail(STATUS_INVALID, "the tokenizer's patterns take too much work on this text");
    if (rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
        return status_fail(STATUS_INVALID, "the tokenizer's pattern takes too much memory on this text: %s", reason);
    return status_fail(STATUS_INTERNAL, "the tokenizer's pattern failed on this text: %s", reason);
}

// Finds the first match at or after walk->from.
static enum status walk_match(struct pattern_walk *walk, size_t *start_p, size_t *end_p, bool *found_p)
{
    const struct pattern *pattern = walk->pattern;
    *found_p = false;
    if (!pattern->code) {
        const char *at = memmem(walk->text + walk->from, walk->n - walk->from, pattern->source, pattern->n);
        if (!at) return STATUS_OK;
        *start_p = (size_t)(at - walk->text);
        *end_p = *start_p + pattern->n;
        *found_p = true;
        return STATUS_OK;
    }
    // The text was validated once; validating it at every match would take quadratic time.
    uint32_t options = PCRE2_NO_UTF_CHECK;
    pcre2_set_callout(walk->scratch->context, count_work, walk);
    int rc = pcre2_match(pattern->code, (PCRE2_SPTR)walk->text, walk->n, walk->from, options, walk->scratch->data,
                         walk->scratch->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its state on the heap
        rc = pcre2_match(pattern->code, (PCRE2_SPTR)walk->text, walk->n, walk->from, options | PCRE2_NO_JIT,
                         walk->scratch->data, walk->scratch->context);
    if (rc == PCRE2_ERROR_NOMATCH) return STATUS_OK;
    if (rc < 0) return match_refuse(rc);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(walk->scratch->data);
    *start_p = place[0];
    *end_p = place[1];
    *found_p = true;
    return STATUS_OK;
}

enum status pattern_walk_next(struct pattern_walk *walk, size_t *start_p, size_t *end_p, bool *found_p)
{
    *found_p = false;
    if (walk->pattern->scan) {
        *start_p = walk->from;
        *found_p = walk->from < walk->n;
        if (*found_p) *end_p = walk->from = pattern_scan_match(walk->pattern->scan, walk->text, walk->n, walk->from);
        return STATUS_OK;
    }
    while (walk->from <= walk->n) {
        size_t start, end;
        bool found;
        enum status status = walk_match(walk, &start, &end, &found);
        if (status || !found) return status;
        // Skip an empty match directly after the last match: the walk would not advance.
        if (start == end && walk->matched && walk->last_end == end) {
            walk->from += walk->from < walk->n ? utf8_length(walk->text[walk->from]) : 1;
            continue;
        }
        walk->from = walk->last_end = end;
        walk->matched = *found_p = true;
        *start_p = start;
        *end_p = end;
        break;
    }
    return STATUS_OK;
}
