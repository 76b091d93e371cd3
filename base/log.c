// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Written once by log_setup before other threads start, read-only afterwards.
static char who[64] = "forepack";
static enum log_level limit = LOG_INFO;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_setup(const char *name, enum log_level level)
{
    snprintf(who, sizeof who, "%s", name);
    limit = level;
}

int log_level_parse(const char *name, enum log_level *level_p)
{
    for (int i = 0; i <= LOG_DEBUG; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level_p = (enum log_level)i;
            return 1;
        }
    }
    return 0;
}

void log_line(enum log_level level, const char *format, ...)
{
    if (level > limit) return;
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %s %s ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                     now.tv_nsec / 1000000, level_names[level], who);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    n += m;
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    for (int i = 0; i < n; i++) {
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' '; // foreign text cannot forge a second line
    }
    line[n++] = '\n';
    // One write(2), so lines of several processes on one terminal do not mix.
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}
