// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { WIDTH = 30, TERMINAL_US = 100000, ELSEWHERE_US = 5000000 };

void progress_draw(struct progress *p, long long done, long long total, bool last, const char *format, ...)
{
    int64_t now = clock_now_us();
    bool terminal = isatty(STDERR_FILENO);
    if (!p->drawn_us && !terminal) p->drawn_us = now; // what is over soon needs no line on the way
    if (!last && now - p->drawn_us < (terminal ? TERMINAL_US : ELSEWHERE_US)) return;
    p->drawn_us = now;
    char bar[WIDTH + 1], text[200];
    int filled = total > 0 ? (int)(WIDTH * done / total) : WIDTH;
    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t)(filled < WIDTH ? filled : WIDTH));
    bar[WIDTH] = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // On a terminal a shorter line must wipe what is left of the longer one before.
    fprintf(stderr, "%s[%s] %s%s%s", terminal ? "\r" : "", bar, text, terminal ? "\033[K" : "",
            terminal && !last ? "" : "\n");
}
