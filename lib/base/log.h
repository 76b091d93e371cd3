// SPDX-License-Identifier: Apache-2.0
// Logs one line per event on stderr, as logfmt or JSON:
//
//     2026-11-22T13:04:31.207+01:00 info worker[2] prefill_done req=0000009f tokens=1840 ms=41.3
//     {"time":"2026-11-22T12:04:31.207Z","level":"info","process":"worker[2]","event":"prefill_done",...}
//
// On the journal of systemd each line begins with its priority, such as <4> for a warning, and logfmt has no time.
//
// Event names are lower-case noun_verb, in the past tense for facts (node_attached). Keys carry the unit of their
// value.
//
// Values with blanks, quotes or control characters are quoted and escaped. So a value from the network can neither
// start a second line nor reach the terminal as an escape sequence. Malformed UTF-8 becomes U+FFFD. A line longer than
// LOG_LINE_BYTES is cut: a text that does not fit ends after a whole character, later fields are left out, and the line
// ends with cut=true. Any thread may log. Signal handlers must not. Prompts, outputs and credentials are never logged.
//
// Lines are written directly until log_writer_start() (lib/base/log_writer.h). After it, logging never blocks.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/clock.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON };
enum { LOG_LINE_BYTES = 2048 };

// log_setup() sets the process name in every line, such as "worker[2]" (copied), and the most verbose level that is
// written. Call it and log_set_format() before other threads start. The defaults are logfmt and level info.
void log_setup(const char *process, enum log_level level);
void log_set_format(enum log_format format);
void log_set_journal(bool journal); // standard error is the journal (lib/base/journal.h); before other threads start
void log_set_level(enum log_level level); // any thread, at any time

// Converts "error", "warn", "info" or "debug" to a level. Returns false for any other name.
bool log_level_parse(const char *name, enum log_level *level_p);

// One key=value of a line. LOG_FIELD selects the type by the value's C type: text (NULL becomes ""), bool, integer or
// real number. The literals true and false, and comparisons, are integers in C11: cast them to bool.
struct log_field {
    const char *key;
    enum { LOG_TEXT, LOG_BOOL, LOG_INT, LOG_UINT, LOG_REAL, LOG_HEX, LOG_MILLISECONDS } type;
    union {
        const char *text;
        bool boolean;
        int64_t integer;
        uint64_t natural;
        double real;
    } value;
};
#define LOG_FIELD(k, v)                                                                                                \
    _Generic((v),                                                                                                      \
        char *: log_field_text,                                                                                        \
        const char *: log_field_text,                                                                                  \
        bool: log_field_bool,                                                                                          \
        float: log_field_real,                                                                                         \
        double: log_field_real,                                                                                        \
        unsigned long: log_field_uint,                                                                                 \
        unsigned long long: log_field_uint,                                                                            \
        default: log_field_int)(k, v)
#define LOG_MS(key, us)       log_field_ms(key, us)        // microseconds, written as milliseconds: 41.3
#define LOG_FINGERPRINT(k, v) log_field_hex(k, v)          // 16 hex digits
#define LOG_REQUEST(number)   log_field_hex("req", number) // the router's request number, used by every process
#define LOG_REASON            LOG_FIELD("reason", status_message()) // message of the last status_fail()

// log_event(LOG_INFO, "node_lost", LOG_FIELD("node", id), LOG_FIELD("requests", n));
#define log_event(level, event, ...)                                                                                   \
    log_write(level, event, (const struct log_field[]){__VA_ARGS__},                                                   \
              sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))
void log_write(enum log_level level, const char *event, const struct log_field *fields, size_t n_fields);

// Logs events that clients or nodes can cause at will. Each place in the code logs at most LOG_LIMIT_LINES lines a
// second, so that the log does not fill the disk. The field left_out of the place's next line is the number of dropped
// lines.
enum { LOG_LIMIT_LINES = 20 };
// State of one place in the code; static, starts as zeros.
struct log_limit {
    atomic_llong second;
    atomic_uint lines; // number of lines in `second`
    atomic_ullong left_out;
};
#define log_event_limited(level, event, ...)                                                                           \
    do {                                                                                                               \
        static struct log_limit log_limit_;                                                                            \
        unsigned long long left_out_;                                                                                  \
        if (!log_limit_take(&log_limit_, clock_now_us(), &left_out_)) break;                                           \
        const struct log_field fields_[] = {__VA_ARGS__, LOG_FIELD("left_out", left_out_)};                            \
        log_write(level, event, fields_, sizeof fields_ / sizeof *fields_ - (left_out_ ? 0 : 1));                      \
    } while (0)
bool log_limit_take(struct log_limit *place, int64_t now_us, unsigned long long *left_out_p);

// Logs the event log_lines_dropped. Pass this function to log_writer_start().
void log_tell_dropped(uint64_t lines);

static inline struct log_field log_field_text(const char *key, const char *text)
{
    return (struct log_field){key, LOG_TEXT, {.text = text ? text : ""}};
}

static inline struct log_field log_field_bool(const char *key, bool boolean)
{
    return (struct log_field){key, LOG_BOOL, {.boolean = boolean}};
}

static inline struct log_field log_field_int(const char *key, int64_t integer)
{
    return (struct log_field){key, LOG_INT, {.integer = integer}};
}

static inline struct log_field log_field_uint(const char *key, uint64_t natural)
{
    return (struct log_field){key, LOG_UINT, {.natural = natural}};
}

static inline struct log_field log_field_real(const char *key, double real)
{
    return (struct log_field){key, LOG_REAL, {.real = real}};
}

static inline struct log_field log_field_hex(const char *key, uint64_t natural)
{
    return (struct log_field){key, LOG_HEX, {.natural = natural}};
}

static inline struct log_field log_field_ms(const char *key, int64_t us)
{
    return (struct log_field){key, LOG_MILLISECONDS, {.integer = us}};
}
