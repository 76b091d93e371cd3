// SPDX-License-Identifier: Apache-2.0
// forepack debug request: finds a request in the logs of router, speculators and workers. Each log has the
// router's number of the request (`req=`); the router's log also has the client's id.
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/debug.h"
#include "cli/request.h"
#include "lib/base/line_reader.h"
#include "lib/base/mem.h"

enum { LINE_BYTES_MAX = 1 << 20, NUMBER_DIGITS = 16 };

static const struct option options[] = {{0}};

struct numbers { // of the requests that have the id
    char (*texts)[NUMBER_DIGITS + 1];
    size_t n, capacity;
};

struct found_line {
    char *text;       // owned; the line
    const char *file; // borrowed
    char time[40];    // time of the line, or "" if it has none
    size_t order;     // number of the line among all that were found
};

struct search {
    const char *id;
    struct numbers numbers;
    struct found_line *lines; // [n]
    size_t n, capacity;
};

typedef void line_fn(struct search *search, const char *file, const char *line);

static enum status file_each_line(struct search *search, const char *path, line_fn *visit)
{
    struct line_reader reader = {0};
    const char *line;
    size_t size;
    if (line_reader_open(&reader, path, LINE_BYTES_MAX) != 0)
        return status_fail(STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    enum line_result result;
    while ((result = line_reader_next(&reader, &line, &size)) == LINE_READ || result == LINE_TOO_LONG) {
        if (result != LINE_READ) continue;
        char *text = mem_format("%.*s", (int)size, line);
        visit(search, path, text);
        free(text);
    }
    int error = errno;
    line_reader_close(&reader);
    return result == LINE_END ? STATUS_OK : status_fail(STATUS_INTERNAL, "%s: %s", path, strerror(error));
}

// Returns the value of a field in a line of logfmt (key=value, key="value") or JSON ("key":"value"), up to the end of
// the line, or NULL. The value may begin with a quote.
static const char *field_find(const char *line, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = line; (at = strstr(at, key)); at += n) {
        bool quoted = at > line && at[-1] == '"' && strncmp(at + n, "\":", 2) == 0;
        bool plain = at > line && at[-1] == ' ' && at[n] == '=';
        if (quoted) return at + n + 2;
        if (plain) return at + n + 1;
    }
    return NULL;
}

// Returns true if the value at `at` is `text`. In quotes, the log escapes quotes and backslashes by a backslash.
static bool value_is(const char *at, const char *text)
{
    bool quoted = *at == '"';
    at += quoted;
    for (; *text; text++, at++) {
        if (quoted && *at == '\\') at++;
        if (*at != *text) return false;
    }
    return quoted ? *at == '"' : *at == ' ' || !*at;
}

// Copies the number of the line's request. Returns false if the line has none.
static bool number_read(const char *line, char number[NUMBER_DIGITS + 1])
{
    const char *at = field_find(line, "req");
    if (!at) return false;
    at += *at == '"';
    if (strspn(at, "0123456789abcdef") != NUMBER_DIGITS) return false;
    memcpy(number, at, NUMBER_DIGITS);
    number[NUMBER_DIGITS] = 0;
    return true;
}

static bool numbers_have(const struct numbers *numbers, const char *number)
{
    for (size_t i = 0; i < numbers->n; i++)
        if (strcmp(numbers->texts[i], number) == 0) return true;
    return false;
}

static void numbers_add(struct numbers *numbers, const char *number)
{
    if (numbers_have(numbers, number)) return;
    MEM_GROW(numbers->texts, numbers->n, numbers->capacity);
    strcpy(numbers->texts[numbers->n++], number);
}

static void line_match_id(struct search *search, const char *file, const char *line)
{
    char number[NUMBER_DIGITS + 1];
    const char *id = field_find(line, "client_id");
    if (id && value_is(id, search->id) && number_read(line, number)) numbers_add(&search->numbers, number);
}

// Copies the time of a line: the first word of logfmt after a level such as <4>, or the field "time" of JSON.
static void time_read(const char *line, char *time, size_t size)
{
    const char *at = *line == '{' ? field_find(line, "time") : line;
    if (at && *at == '<') at += strcspn(at, ">") + 1;
    if (at && *at == '"') at++;
    size_t n = at && isdigit((unsigned char)*at) ? strcspn(at, " \"") : 0;
    snprintf(time, size, "%.*s", (int)n, n ? at : "");
}

static void line_collect(struct search *search, const char *file, const char *line)
{
    char number[NUMBER_DIGITS + 1];
    if (!number_read(line, number) || !numbers_have(&search->numbers, number)) return;
    MEM_GROW(search->lines, search->n, search->capacity);
    struct found_line *found = &search->lines[search->n];
    *found = (struct found_line){.text = mem_string(line), .file = file, .order = search->n++};
    time_read(line, found->time, sizeof found->time);
}

static int by_time(const void *a, const void *b)
{
    const struct found_line *x = a, *y = b;
    int order = strcmp(x->time, y->time);
    return order ? order : (x->order > y->order) - (x->order < y->order);
}

static bool is_number(const char *id)
{
    return strlen(id) == NUMBER_DIGITS && strspn(id, "0123456789abcdef") == NUMBER_DIGITS;
}

static enum status search_run(struct search *search, char **logs, int n_logs)
{
    for (int i = 0; i < n_logs; i++)
        TRY(file_each_line(search, logs[i], line_match_id));
    if (is_number(search->id)) numbers_add(&search->numbers, search->id);
    for (int i = 0; i < n_logs; i++)
        TRY(file_each_line(search, logs[i], line_collect));
    if (!search->n)
        return status_fail(STATUS_NOT_FOUND, "no line of the %d logs is about a request %s", n_logs, search->id);
    qsort(search->lines, search->n, sizeof *search->lines, by_time);
    for (size_t i = 0; i < search->n; i++)
        printf("%s: %s\n", search->lines[i].file, search->lines[i].text);
    return STATUS_OK;
}

static void search_fini(struct search *search)
{
    for (size_t i = 0; i < search->n; i++)
        free(search->lines[i].text);
    free(search->lines);
    free(search->numbers.texts);
}

int debug_request(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n = options_main(options,
                         "Usage: forepack debug request ID LOG...\n"
                         "Prints the lines about one request in the log files of router, speculators and workers, by\n"
                         "time, each with its file. ID is the id of the client or answer, or the number after req=.\n"
                         "Nodes log requests at --log-level debug. A router's numbers begin again when it restarts.",
                         argc, argv, rest);
    struct search search = {.id = n ? rest[0] : ""};
    enum status status = n < 2 ? status_fail(STATUS_INVALID, "give the id of a request and at least one log file")
                               : search_run(&search, rest + 1, n - 1);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    search_fini(&search);
    free(rest);
    return code;
}
