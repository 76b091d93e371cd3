// SPDX-License-Identifier: Apache-2.0
#include "lib/base/number_list.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Returns true if the list item at `at` is `word`. *end_p becomes its end.
static bool list_item_is(const char *at, const char *word, char **end_p)
{
    size_t length = strlen(word);
    if (strncmp(at, word, length) != 0 || (at[length] && at[length] != ',')) return false;
    *end_p = (char *)at + length;
    return true;
}

// Parses a list of numbers. `word`, which may be NULL, stands for -1.
static enum status counts_parse(const char *flag, const char *text, const char *word, int min, int max,
                                struct count_list *counts)
{
    struct count_list c = {.n = 0};
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        bool is_word = word && list_item_is(at, word, &end);
        long value = is_word ? -1 : strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || errno || (!is_word && (value < min || value > max)))
            return status_fail(STATUS_INVALID, "--%s '%s': must be %s%swhole numbers from %d to %d, comma-separated",
                               flag, text, word ? word : "", word ? " or " : "", min, max);
        if (c.n == NUMBER_LIST_MAX)
            return status_fail(STATUS_INVALID, "--%s '%s': must be at most %d numbers", flag, text, NUMBER_LIST_MAX);
        c.count[c.n++] = (int)value;
        if (!*end) break;
        at = end;
    }
    *counts = c;
    return STATUS_OK;
}

enum status count_list_parse(const char *flag, const char *text, int min, int max, struct count_list *counts)
{
    return counts_parse(flag, text, NULL, min, max, counts);
}

enum status count_list_or_auto_parse(const char *flag, const char *text, int min, int max, struct count_list *counts)
{
    return counts_parse(flag, text, "auto", min, max, counts);
}

enum status real_list_parse(const char *flag, const char *text, double min, double max, double *value, int *n_p)
{
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        double number = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(number >= min && number <= max))
            return status_fail(STATUS_INVALID, "--%s '%s': must be numbers from %g to %g, comma-separated", flag, text,
                               min, max);
        if (n == NUMBER_LIST_MAX)
            return status_fail(STATUS_INVALID, "--%s '%s': must be at most %d numbers", flag, text, NUMBER_LIST_MAX);
        value[n++] = number;
        if (!*end) break;
        at = end;
    }
    *n_p = n;
    return STATUS_OK;
}
