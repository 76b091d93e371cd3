// SPDX-License-Identifier: Apache-2.0
#include "cli/answer_lines.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/answer.h"

// Returns true if the line may be the beginning of an answer that a killed run was writing.
static bool begins_answer(const char *line, size_t size)
{
    static const char begin[] = "{\"id\":\"";
    size_t n = size < sizeof begin - 1 ? size : sizeof begin - 1;
    return memcmp(line, begin, n) == 0;
}

// Copies a line if it is a complete answer. A line with a NUL byte, in a damaged file, is not JSON.
static enum status line_copy(const char *path, int number, const char *line, size_t size, FILE *to,
                             answer_line_fn *copies, void *arg)
{
    json_t *object = json_loadb(line, size, JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(object, "id"));
    const char *reason = json_string_value(json_object_get(object, "finish_reason"));
    bool complete = line[size - 1] == '\n', answered = id && !answer_reason_is_failure(reason);
    if (answered && copies(arg, id)) {
        fwrite(line, 1, size, to);
        if (!complete) fputc('\n', to);
    }
    bool cut_off = !complete && !object && begins_answer(line, size);
    bool wrong = !(id && reason) && !cut_off;
    json_decref(object);
    if (!wrong) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--output %s:%d: not an answer of forepack batch: choose another file", path,
                       number);
}

enum status answer_lines_copy(const char *path, FILE *from, FILE *to, answer_line_fn *copies, void *arg)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    enum status status = STATUS_OK;
    for (int number = 1; status == STATUS_OK && (size = getline(&line, &capacity, from)) > 0; number++)
        status = line_copy(path, number, line, (size_t)size, to, copies, arg);
    free(line);
    if (status == STATUS_OK && (ferror(from) || fflush(to) != 0 || ferror(to)))
        status = status_fail(STATUS_INVALID, "--output %s: %s", path, strerror(errno));
    return status;
}
