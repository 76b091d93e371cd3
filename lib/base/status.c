// SPDX-License-Identifier: Apache-2.0
#include "lib/base/status.h"

#include <stdarg.h>
#include <string.h>

#include "lib/base/utf8.h"

static _Thread_local char message[1024];

static const char *const names[STATUS_COUNT] = {
    [STATUS_OK] = "ok",
    [STATUS_INVALID] = "invalid",
    [STATUS_NOT_FOUND] = "not_found",
    [STATUS_EXISTS] = "already_exists",
    [STATUS_MISMATCH] = "mismatch",
    [STATUS_OUT_OF_RANGE] = "out_of_range",
    [STATUS_EXHAUSTED] = "exhausted",
    [STATUS_KEY_LIMIT] = "key_limit",
    [STATUS_UNAVAILABLE] = "unavailable",
    [STATUS_DEADLINE] = "deadline",
    [STATUS_CANCELLED] = "cancelled",
    [STATUS_UNAUTHENTICATED] = "unauthenticated",
    [STATUS_DENIED] = "denied",
    [STATUS_UNSUPPORTED] = "unsupported",
    [STATUS_DATA] = "data",
    [STATUS_INTERNAL] = "internal",
};

const char *status_name(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? names[status] : "unknown";
}

int status_exit_code(enum status status)
{
    switch (status) {
    case STATUS_OK: return 0;
    case STATUS_INVALID:
    case STATUS_NOT_FOUND:
    case STATUS_UNSUPPORTED:
    case STATUS_DATA: return 2;
    default: return 1;
    }
}

enum status status_fail(enum status status, const char *format, ...)
{
    // The message is formatted into another buffer because an argument may be the current message.
    char text[sizeof message];
    va_list args;
    va_start(args, format);
    utf8_format_list(text, sizeof text, format, args);
    va_end(args);
    utf8_mend(text); // clients refuse messages with malformed UTF-8, and the names of files may be any bytes
    memcpy(message, text, sizeof message);
    return status;
}

enum status status_context(enum status status, const char *format, ...)
{
    char context[256];
    va_list args;
    va_start(args, format);
    utf8_format_list(context, sizeof context, format, args);
    va_end(args);
    return status_fail(status, "%s: %s", context, message);
}

const char *status_message(void)
{
    return message;
}
