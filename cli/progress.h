// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error. On a terminal it is redrawn in place, otherwise a new line is printed every few
// seconds.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress { // zero at the start
    int64_t drawn_us;
};

// Draws the bar for `done` of `total`, followed by the text. Draws nothing if the last drawing was only a short time
// ago, unless `last` is true. If `last` is true, also ends the line.
void progress_draw(struct progress *p, long long done, long long total, bool last, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
