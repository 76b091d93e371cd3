// SPDX-License-Identifier: Apache-2.0
#include "lib/base/invariant.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/log.h"

// Returns "cpu/linear.c" for ".../kernels/cpu/linear.c": the compiler may be given absolute paths.
static const char *file_tail(const char *file)
{
    const char *tail = file, *next = file;
    for (const char *at = file; *at; at++)
        if (*at == '/') {
            tail = next;
            next = at + 1;
        }
    return tail;
}

void invariant_broken(const char *file, int line, const char *condition, const char *format, ...)
{
    char message[512], place[160];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(place, sizeof place, "%s:%d", file_tail(file), line);
    log_event(LOG_ERROR, "invariant_broken", LOG_FIELD("at", place), LOG_FIELD("condition", condition),
              LOG_FIELD("message", message));
    abort();
}
