// SPDX-License-Identifier: Apache-2.0
// Checks invariants in every build. Release builds drop assert(): use it only for checks that run once per element,
// which are too slow for a release. A broken invariant is a bug in this program, never bad input: bad input gets a
// status.
//
//     INVARIANT(rows <= out->max_rows, "%d rows, the tensor holds %d", rows, out->max_rows);
//
// The message has printf's format: say what broke and show the values. A broken invariant logs file, line, condition
// and message as one `invariant_broken` event and aborts the process. The abort leaves a core dump if core dumps are
// enabled. Any thread may check an invariant, and the check itself is one branch.
#pragma once

#define INVARIANT(condition, ...)                                                                                      \
    do {                                                                                                               \
        if (__builtin_expect(!(condition), 0)) invariant_broken(__FILE__, __LINE__, #condition, __VA_ARGS__);          \
    } while (0)

_Noreturn void invariant_broken(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));
