// SPDX-License-Identifier: Apache-2.0
// One line per event on stderr: `12:04:31.207 info worker[2] prefill_done req=9f3c tokens=1840 ms=41.3`.
// Any thread may log; a line is written whole. Prompts, outputs and credentials are never logged.
#pragma once

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

// Who is speaking, e.g. "worker[2]" (copied), and the most talkative level let through. Call once at start.
void log_setup(const char *who, enum log_level level);

// "error", "warn", "info", "debug" -> level; returns 0 when the name is none of them.
int log_level_parse(const char *name, enum log_level *level_p);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
