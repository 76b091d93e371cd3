// SPDX-License-Identifier: Apache-2.0
// The result of a function that can fail, the same in every module, and the error message of a failure.
//
// A function that can fail returns `enum status`. Results go through out parameters (named `_p`) that are written only
// on STATUS_OK. The function that knows the cause, and only that function, calls `status_fail()`. It records an error
// message for the user, a sentence such as "temperature -1: must be 0 or more", in the calling thread. Its callers just
// pass the status on.
#pragma once

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,         // an argument is malformed or out of its range
    STATUS_NOT_FOUND,       // the named model, file or request does not exist
    STATUS_EXISTS,          // the id is in use
    STATUS_MISMATCH,        // what the request refers to differs here
    STATUS_OUT_OF_RANGE,    // the prompt does not fit the context
    STATUS_EXHAUSTED,       // a bounded resource is full; try again later
    STATUS_KEY_LIMIT,       // the caller's API key has used up a limit; try again later
    STATUS_UNAVAILABLE,     // a peer is down or a pool is empty; try again later
    STATUS_DEADLINE,        // the deadline passed
    STATUS_CANCELLED,       // the client cancelled
    STATUS_UNAUTHENTICATED, // no credentials, or wrong ones
    STATUS_DENIED,          // the caller is known, but may not do this
    STATUS_UNSUPPORTED,     // valid, but not built in or not implemented for this model
    STATUS_DATA,            // a file is truncated or contradicts itself
    STATUS_INTERNAL,        // a bug, a failed system call, or a malformed answer of a server
    STATUS_COUNT
};

// Returns the lower-case name for logs, never NULL.
const char *status_name(enum status status);

// Records the error message of this thread (well-formed UTF-8, cut after at most 1023 bytes) and returns `status`. The
// arguments may include status_message().
enum status status_fail(enum status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts "context: " before this thread's error message ("model dir/x: ...") and returns `status` unchanged.
enum status status_context(enum status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Returns the exit code of a program that ends with `status`: 0 for success, 2 if the same command line would fail
// again (INVALID, NOT_FOUND, UNSUPPORTED, DATA), else 1. OUT_OF_RANGE gives 1: the prompt is too long, but the command
// line is right.
int status_exit_code(enum status status);

// Returns from the calling function with the status of `call` unless it is STATUS_OK.
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum status try_status = (call);                                                                               \
        if (try_status != STATUS_OK) return try_status;                                                                \
    } while (0)

// Combines calls that must all run: returns `now` if it failed, else `before`. The error message is that of the last
// failure.
static inline enum status status_either(enum status before, enum status now)
{
    return now == STATUS_OK ? before : now;
}

// Returns the error message of this thread's last status_fail(), valid until its next status_fail(). Never NULL.
const char *status_message(void);
