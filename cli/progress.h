// SPDX-License-Identifier: Apache-2.0
// A bar on standard error while something takes long: redrawn in place on a terminal, a line now and then elsewhere.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress { // starts as zero
    int64_t drawn_us;
};

// Draws `done` of `total` and the text behind it, unless it was drawn just now; the `last` time always, with the end of
// the line.
void progress_draw(struct progress *p, long long done, long long total, bool last, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
