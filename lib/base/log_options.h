// SPDX-License-Identifier: Apache-2.0
// The log options that every program has:
//
//     static struct { ...; struct log_options log; } o;
//     static const struct option options[] = { ..., LOG_OPTION_ROWS(o.log), {0} };
//     options_main(options, usage, argc, argv, NULL);
//     log_options_apply(&o.log, "worker[2]");
//     log_writer_start(log_tell_dropped);
//     options_log(options);
#pragma once

#include "lib/base/log.h"
#include "lib/base/options.h"

struct log_options {
    char *level, *format; // owned by the options
};

// Rows for an option table. `o` is a static struct log_options.
// clang-format off
#define LOG_OPTION_ROWS(o) LOG_OPTION_ROWS_FROM(o, "info")
#define LOG_OPTION_ROWS_FROM(o, default_level)                                                                         \
    {.name = "log-level", .type = OPTION_CHOICE, .value = &(o).level, .default_text = default_level,                   \
     .choices = "error|warn|info|debug", .live = true,                                                                 \
     .help = "most verbose level that is logged on standard error"},                                                  \
    {.name = "log-format", .type = OPTION_CHOICE, .value = &(o).format, .default_text = "logfmt",                      \
     .choices = "logfmt|json", .help = "format of log lines: key=value text, or one JSON object per line"}
// clang-format on

// Sets the process name of log lines (copied), the level and the format, also that of the journal. Ignores SIGPIPE, so
// that a program outlives the reader of its log. Call it after parsing and before other threads start.
void log_options_apply(const struct log_options *options, const char *process);
// Sets the level again, after options_reload(). Any thread may call.
void log_options_apply_level(const struct log_options *options);
