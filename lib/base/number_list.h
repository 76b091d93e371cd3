// SPDX-License-Identifier: Apache-2.0
// Lists of numbers on the command line, such as "1,8,32". An option of the same name takes the same list in every
// program.
#pragma once

#include "lib/base/status.h"

enum { NUMBER_LIST_MAX = 32 };

struct count_list {
    int n, count[NUMBER_LIST_MAX];
};

// Parses whole numbers from `min` to `max`. Returns STATUS_INVALID with an error message that names `flag`.
enum status count_list_parse(const char *flag, const char *text, int min, int max, struct count_list *counts);

// Parses "auto,32,0", where "auto" stands for -1.
enum status count_list_or_auto_parse(const char *flag, const char *text, int min, int max, struct count_list *counts);

// Parses real numbers into value [NUMBER_LIST_MAX].
enum status real_list_parse(const char *flag, const char *text, double min, double max, double *value, int *n_p);
