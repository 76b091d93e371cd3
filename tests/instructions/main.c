// SPDX-License-Identifier: Apache-2.0
// Runs one row of the gate and prints the number by which its count is divided.
#include "tests/instructions/rows.h"

#include <check.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/log.h"

static const struct {
    const char *name;
    long (*run)(void);
} rows[] = {
    {"encode", row_encode},
    {"decode", row_decode},
    {"select_spans", row_select_spans},
    {"select_chunks", row_select_chunks},
    {"queue_submit", row_queue_submit},
    {"queue_pack", row_queue_pack},
    {"scheduler_step", row_scheduler_step},
    {"http_request", row_http_request},
    {"grpc_request", row_grpc_request},
};
enum { ROWS = sizeof rows / sizeof *rows };

// The compiler must keep these three functions, because valgrind looks for their names.
__attribute__((noipa)) void counting_begin(void)
{
}

__attribute__((noipa)) void counting_end(void)
{
}

__attribute__((noipa)) void not_counted(void (*function)(void *), void *arg)
{
    function(arg);
}

// Replaces the library's function, so that collisions in hash tables are the same in each run.
struct hash_key hash_key_random(void)
{
    return (struct hash_key){1, 2};
}

// The fixtures of tests use Check's assertions, which work only in its runner. These two functions replace its library
// and cost next to nothing.
void _mark_point(const char *file, int line)
{
}

void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
{
    va_list args;
    va_start(args, msg);
    fprintf(stderr, "%s:%d: %s: ", file, line, expr);
    if (msg) vfprintf(stderr, msg, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

int main(int argc, char **argv)
{
    log_setup("instructions", LOG_ERROR);
    json_object_seed(1);
    for (int i = 0; i < ROWS && argc == 2; i++) {
        if (strcmp(rows[i].name, argv[1]) != 0) continue;
        printf("%ld\n", rows[i].run());
        return 0;
    }
    for (int i = 0; i < ROWS && argc == 1; i++)
        puts(rows[i].name);
    return argc != 1;
}
