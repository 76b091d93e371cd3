// SPDX-License-Identifier: Apache-2.0
#include "lib/base/trace.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"

enum column { ARRIVAL, PROMPT, OUTPUT, BLOCKS, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"arrival_ms", "prompt_tokens", "output_tokens", "prefix_blocks"};

enum { FIELDS_MAX = 64, TOKENS_MAX = 100000000 };

// Splits a line at its commas, in place.
static int trace_split(char *line, char **fields)
{
    int n = 0;
    line[strcspn(line, "\r\n")] = 0;
    for (char *at = line; at && n < FIELDS_MAX; n++) {
        fields[n] = at;
        at = strchr(at, ',');
        if (at) *at++ = 0;
    }
    return n;
}

static enum status trace_read_header(const char *path, char *line, int *column)
{
    char *fields[FIELDS_MAX];
    int n = trace_split(line, fields);
    for (int c = 0; c < N_COLUMNS; c++) {
        column[c] = -1;
        for (int i = 0; i < n; i++)
            if (strcmp(fields[i], column_names[c]) == 0) column[c] = i;
        if (column[c] < 0 && c != BLOCKS)
            return status_fail(STATUS_INVALID, "%s:1: the header lacks the column %s", path, column_names[c]);
    }
    return STATUS_OK;
}

static bool trace_parse_count(const char *text, int *value_p)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < 0 || value > TOKENS_MAX) return false;
    *value_p = (int)value;
    return true;
}

static bool trace_parse_blocks(const char *text, struct trace *t, struct trace_row *row)
{
    row->first_block = t->n_blocks;
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ' ') || errno || id < 0) return false;
        MEM_GROW(t->blocks, t->n_blocks, t->blocks_capacity);
        t->blocks[t->n_blocks++] = id;
        at = end;
    }
    row->n_blocks = t->n_blocks - row->first_block;
    return true;
}

static enum status trace_read_row(const char *path, int number, char *line, const int *column, struct trace *t)
{
    char *fields[FIELDS_MAX];
    int n = trace_split(line, fields);
    struct trace_row row = {0};
    for (int c = 0; c < N_COLUMNS; c++) {
        if (column[c] < 0) continue;
        if (column[c] >= n) {
            if (c == BLOCKS) continue;
            return status_fail(STATUS_INVALID, "%s:%d: the row lacks %s", path, number, column_names[c]);
        }
        const char *text = fields[column[c]];
        char *end = "";
        bool good = c == PROMPT   ? trace_parse_count(text, &row.prompt_tokens) && row.prompt_tokens >= 1
                    : c == OUTPUT ? trace_parse_count(text, &row.output_tokens)
                    : c == BLOCKS ? trace_parse_blocks(text, t, &row)
                                  : (row.arrival_ms = strtod(text, &end), end != text && !*end) &&
                                        isfinite(row.arrival_ms) && row.arrival_ms >= 0;
        if (!good)
            return status_fail(STATUS_INVALID, "%s:%d: %s '%.40s': must be %s", path, number, column_names[c], text,
                               c == ARRIVAL  ? "a time of 0 or more"
                               : c == PROMPT ? "a whole number from 1"
                               : c == OUTPUT ? "a whole number from 0"
                                             : "whole numbers separated by blanks");
    }
    if (t->n_rows && row.arrival_ms < t->rows[t->n_rows - 1].arrival_ms)
        return status_fail(STATUS_INVALID, "%s:%d: arrival_ms %g is less than in the previous row", path, number,
                           row.arrival_ms);
    MEM_GROW(t->rows, t->n_rows, t->rows_capacity);
    t->rows[t->n_rows++] = row;
    return STATUS_OK;
}

enum status trace_read(const char *path, struct trace *trace)
{
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INVALID, "%s: %s", path, strerror(errno));
    struct trace t = {0};
    char *line = NULL;
    size_t capacity = 0;
    int column[N_COLUMNS], number = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && getline(&line, &capacity, file) > 0) {
        if (++number == 1)
            status = trace_read_header(path, line, column);
        else if (line[strspn(line, " \t\r\n")])
            status = trace_read_row(path, number, line, column, &t);
    }
    if (status == STATUS_OK && ferror(file)) status = status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    if (status == STATUS_OK && !t.n_rows) status = status_fail(STATUS_INVALID, "%s: has no rows", path);
    free(line);
    fclose(file);
    if (status == STATUS_OK)
        *trace = t;
    else
        trace_free(&t);
    return status;
}

void trace_free(struct trace *t)
{
    free(t->rows);
    free(t->blocks);
    *t = (struct trace){0};
}

void trace_prompt(const struct trace *t, int row, double scale, uint64_t seed, int vocab_size, int max_tokens,
                  int32_t *tokens, int *n_p)
{
    const struct trace_row *r = &t->rows[row];
    double length = ceil(r->prompt_tokens * scale);
    int n = length < 1 ? 1 : length > max_tokens ? max_tokens : (int)length;
    int block_tokens = (int)fmax(1, round(TRACE_BLOCK_TOKENS * scale));
    struct random_source random = {0};
    for (int i = 0; i < n; i++) {
        int block = i / block_tokens;
        // Even streams belong to block ids. Blocks after the last id are unique to this prompt and get odd streams.
        uint64_t stream = block < r->n_blocks ? (uint64_t)t->blocks[r->first_block + block] * 2
                                              : ((uint64_t)row << 24 | (uint64_t)block) * 2 + 1;
        if (i % block_tokens == 0) random = random_stream(seed, stream);
        tokens[i] = random_below(&random, vocab_size);
    }
    *n_p = n;
}
