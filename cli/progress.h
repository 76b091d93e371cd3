// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error: redrawn in place on a terminal, else a new line every few seconds.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress { // zero at the start
    int64_t drawn_us;
};

// Draws `done` of `total` and the text after the bar, if the last drawing is long enough ago. With `last`, draws in any
// case and ends the line.
void progress_draw(struct progress *p, long long done, long long total, bool last, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
