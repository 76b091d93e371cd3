// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"

enum { BAR_WIDTH = 30, TERMINAL_PERIOD_US = 100000, FILE_PERIOD_US = 5000000 };

void progress_draw(struct progress *p, long long done, long long total, bool last, const char *format, ...)
{
    int64_t now = clock_now_us();
    bool terminal = isatty(STDERR_FILENO);
    if (!p->drawn_us && !terminal) p->drawn_us = now; // the first call starts the period
    if (!last && now - p->drawn_us < (terminal ? TERMINAL_PERIOD_US : FILE_PERIOD_US)) return;
    p->drawn_us = now;
    char bar[BAR_WIDTH + 1], text[200];
    int filled = total > 0 ? (int)(BAR_WIDTH * done / total) : BAR_WIDTH;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)(filled < BAR_WIDTH ? filled : BAR_WIDTH));
    bar[BAR_WIDTH] = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // On a terminal, a shorter line must erase the rest of a longer previous line.
    fprintf(stderr, "%s[%s] %s%s%s", terminal ? "\r" : "", bar, text, terminal ? "\033[K" : "",
            terminal && !last ? "" : "\n");
}
