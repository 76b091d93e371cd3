// SPDX-License-Identifier: Apache-2.0
#include "lib/base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/log_writer.h"
#include "lib/base/utf8.h"

// Written once before other threads start, read-only afterwards.
static char process[64] = "forepack";
static enum log_format format = LOG_FORMAT_LOGFMT;
static bool journal;
static atomic_int limit = LOG_INFO; // relaxed: one line more or less does not matter while it changes

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_setup(const char *name, enum log_level level)
{
    snprintf(process, sizeof process, "%s", name);
    log_set_level(level);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&limit, level, memory_order_relaxed);
}

void log_set_format(enum log_format chosen)
{
    format = chosen;
}

void log_set_journal(bool is_journal)
{
    journal = is_journal;
}

bool log_level_parse(const char *name, enum log_level *level_p)
{
    for (int i = 0; i <= LOG_DEBUG; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level_p = (enum log_level)i;
            return true;
        }
    }
    return false;
}

struct line {
    char text[LOG_LINE_BYTES];
    size_t n;
    bool full; // the last line_add did not fit
    bool cut;  // part of a text or a field was left out
};

// LINE_END_BYTES are kept free for the end of a cut line: `,"cut":true}` and a newline.
enum { LINE_END_BYTES = 16, ESCAPE_BYTES_MAX = 6, PLAIN_BYTES_MAX = 256 };

__attribute__((format(printf, 2, 3))) static void line_add(struct line *line, const char *text, ...)
{
    size_t room = sizeof line->text - LINE_END_BYTES - line->n;
    va_list args;
    va_start(args, text);
    int n = vsnprintf(line->text + line->n, room, text, args);
    va_end(args);
    line->full = (size_t)n >= room;
    line->n += line->full ? room - 1 : (size_t)n;
}

// line_add_bytes(), line_add_integer() and line_add_hex() write what "%s", "%lld" and "%016llx" would, without the cost
// of a format: a request logs two lines of up to 20 fields.
static void line_add_bytes(struct line *line, const char *text, size_t n)
{
    size_t room = sizeof line->text - LINE_END_BYTES - line->n;
    line->full = n >= room;
    if (line->full) n = room - 1;
    memcpy(line->text + line->n, text, n);
    line->n += n;
}

static void line_add_text(struct line *line, const char *text)
{
    line_add_bytes(line, text, strlen(text));
}

enum { DIGITS_MAX = 20 }; // of 64 bits

static void line_add_integer(struct line *line, bool negative, uint64_t magnitude)
{
    char digits[DIGITS_MAX + 1], *p = digits + sizeof digits;
    do
        *--p = (char)('0' + magnitude % 10);
    while (magnitude /= 10);
    if (negative) *--p = '-';
    line_add_bytes(line, p, (size_t)(digits + sizeof digits - p));
}

static void line_add_hex(struct line *line, uint64_t number)
{
    char digits[16];
    for (size_t i = 0; i < sizeof digits; i++)
        digits[i] = "0123456789abcdef"[number >> (60 - 4 * i) & 15];
    line_add_bytes(line, digits, sizeof digits);
}

// Adds microseconds as milliseconds with one decimal.
static void line_add_ms(struct line *line, int64_t us)
{
    bool negative = us < 0;
    uint64_t tenths = ((negative ? 0 - (uint64_t)us : (uint64_t)us) + 50) / 100;
    line_add_integer(line, negative, tenths / 10);
    line_add_bytes(line, (char[]){'.', (char)('0' + tenths % 10)}, 2);
}

// Returns the number of bytes of the UTF-8 character at `text`, or 0 if it is malformed.
static size_t character_bytes(const char *text, size_t left)
{
    unsigned char first = (unsigned char)*text;
    size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    return n <= left && utf8_valid(text, n, NULL) ? n : 0;
}

// Adds the text in double quotes, valid both as JSON and as logfmt. Escapes control characters, and malformed bytes
// become U+FFFD.
static void line_add_quoted(struct line *line, const char *text)
{
    size_t left = strlen(text);
    // Room for one more character, the closing quote and vsnprintf's zero byte.
    const size_t last = sizeof line->text - LINE_END_BYTES - ESCAPE_BYTES_MAX - 2;
    line_add_text(line, "\"");
    while (left && line->n <= last) {
        size_t n = character_bytes(text, left);
        uint32_t c = n ? utf8_code_point(text, n) : 0;
        if (!n) {
            line_add(line, "\\ufffd");
        } else if (c == '"' || c == '\\') {
            line_add(line, "\\%c", (int)c);
        } else if (utf8_is_control(c)) {
            line_add(line, "\\u%04x", c);
        } else {
            line_add_bytes(line, text, n);
        }
        n += !n;
        text += n;
        left -= n;
    }
    line->cut |= left > 0;
    line_add_text(line, "\"");
}

// Returns true if logfmt needs no quotes. Long text gets quotes, because only quoted text can be cut.
static bool text_is_plain(const char *text)
{
    if (strlen(text) > PLAIN_BYTES_MAX) return false;
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '"' || *p == '=' || *p == '\\') return false;
    }
    return *text;
}

static void line_add_value(struct line *line, const struct log_field *f)
{
    bool json = format == LOG_FORMAT_JSON;
    switch (f->type) {
    case LOG_TEXT:
        if (!json && text_is_plain(f->value.text)) {
            line_add_text(line, f->value.text);
        } else {
            line_add_quoted(line, f->value.text);
        }
        break;
    case LOG_BOOL: line_add_text(line, f->value.boolean ? "true" : "false"); break;
    case LOG_INT:
        line_add_integer(line, f->value.integer < 0,
                         f->value.integer < 0 ? 0 - f->value.natural : f->value.natural); // the same bits
        break;
    case LOG_UINT: line_add_integer(line, false, f->value.natural); break;
    case LOG_REAL:
        if (json && !isfinite(f->value.real)) {
            line_add(line, "null");
        } else {
            line_add(line, "%g", f->value.real);
        }
        break;
    case LOG_HEX:
        if (json) line_add_text(line, "\"");
        line_add_hex(line, f->value.natural);
        if (json) line_add_text(line, "\"");
        break;
    case LOG_MILLISECONDS: line_add_ms(line, f->value.integer); break;
    }
}

// Texts of a second: date and time as in RFC 3339, and the zone ("Z" for UTC).
struct second_text {
    char time[24], zone[8];
};

// Returns the texts of a second: in UTC for JSON, else in the local zone. A thread formats each second once.
static const struct second_text *second_text(time_t second)
{
    static _Thread_local time_t last = -1;
    static _Thread_local struct second_text text;
    struct tm tm;
    if (second == last) return &text;
    last = second;
    if (format == LOG_FORMAT_JSON)
        gmtime_r(&second, &tm);
    else
        localtime_r(&second, &tm);
    strftime(text.time, sizeof text.time, "%Y-%m-%dT%H:%M:%S", &tm);
    const long minutes = labs(tm.tm_gmtoff) / 60;
    if (minutes)
        snprintf(text.zone, sizeof text.zone, "%c%02ld:%02ld", tm.tm_gmtoff < 0 ? '-' : '+', minutes / 60 % 100,
                 minutes % 60);
    else
        memcpy(text.zone, "Z", 2);
    return &text;
}

static void line_begin(struct line *line, enum log_level level)
{
    static const int priorities[] = {3, 4, 6, 7}; // of syslog, by level
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned ms = (unsigned)(now.tv_nsec / 1000000);
    const char fraction[] = {'.', (char)('0' + ms / 100), (char)('0' + ms / 10 % 10), (char)('0' + ms % 10)};
    bool json = format == LOG_FORMAT_JSON;
    if (journal) line_add(line, "<%d>", priorities[level]);
    if (json) line_add_text(line, "{\"time\":\"");
    if (json || !journal) {
        const struct second_text *text = second_text(now.tv_sec);
        line_add_text(line, text->time);
        line_add_bytes(line, fraction, sizeof fraction);
        line_add_text(line, text->zone);
        line_add_text(line, json ? "\",\"level\":\"" : " ");
    }
    line_add_text(line, level_names[level]);
    line_add_text(line, json ? "\",\"process\":" : " ");
    if (json)
        line_add_quoted(line, process);
    else
        line_add_text(line, process);
}

static void line_end(struct line *line)
{
    bool json = format == LOG_FORMAT_JSON;
    const char *end = line->cut ? json ? ",\"cut\":true}\n" : " cut=true\n" : json ? "}\n" : "\n";
    memcpy(line->text + line->n, end, strlen(end));
    line->n += strlen(end);
}

void log_write(enum log_level level, const char *event, const struct log_field *fields, size_t n_fields)
{
    if ((int)level > atomic_load_explicit(&limit, memory_order_relaxed)) return;
    bool json = format == LOG_FORMAT_JSON;
    struct line line = {.n = 0};
    line_begin(&line, level);
    line_add_text(&line, json ? ",\"event\":\"" : " ");
    line_add_text(&line, event);
    if (json) line_add_text(&line, "\"");
    for (size_t i = 0; i < n_fields; i++) {
        size_t before = line.n;
        line_add_text(&line, json ? ",\"" : " ");
        line_add_text(&line, fields[i].key);
        line_add_text(&line, json ? "\":" : "=");
        if (!line.full) line_add_value(&line, &fields[i]);
        if (!line.full) continue;
        line.n = before; // half a field would not be JSON
        line.cut = true;
        break;
    }
    line_end(&line);
    log_writer_put(line.text, line.n);
}

bool log_limit_take(struct log_limit *place, int64_t now_us, unsigned long long *left_out_p)
{
    // 0: this place has logged no line yet
    long long second = now_us / 1000000 + 1, before = atomic_load(&place->second);
    if (before != second && atomic_compare_exchange_strong(&place->second, &before, second))
        atomic_store(&place->lines, 0);
    if (atomic_fetch_add(&place->lines, 1) < LOG_LIMIT_LINES) {
        *left_out_p = atomic_exchange(&place->left_out, 0);
        return true;
    }
    atomic_fetch_add(&place->left_out, 1);
    return false;
}

void log_tell_dropped(uint64_t lines)
{
    log_event(LOG_WARN, "log_lines_dropped", LOG_FIELD("lines", lines),
              LOG_FIELD("reason", "lines were logged faster than standard error accepted them"));
}
