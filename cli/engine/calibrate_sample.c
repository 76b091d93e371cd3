// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/calibrate_sample.h"

#include <stdlib.h>

#include "lib/base/fnv.h"
#include "lib/base/mem.h"

static int number_compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

// Sorts the numbers [n]. Returns how many differ, and the size of the largest set of equal ones.
static int count_different(uint64_t *numbers, int n, int *largest_p)
{
    int different = 0, equal = 0;
    *largest_p = 0;
    qsort(numbers, (size_t)n, sizeof *numbers, number_compare);
    for (int i = 0; i < n; i++) {
        const bool same = i && numbers[i] == numbers[i - 1];
        different += !same;
        equal = same ? equal + 1 : 1;
        if (equal > *largest_p) *largest_p = equal;
    }
    return different;
}

static void add(json_t *warnings, char *sentence)
{
    json_array_append_new(warnings, json_string(sentence));
    free(sentence);
}

json_t *calibrate_sample_warnings(const struct calibrate_rows *rows, const uint64_t *answers)
{
    const int n = rows->n;
    int largest;
    json_t *warnings = json_array();
    uint64_t *numbers = mem_alloc_array((size_t)n, sizeof *numbers);
    for (int i = 0; i < n; i++)
        numbers[i] = (uint64_t)rows->rows[i].n;
    count_different(numbers, n, &largest);
    // The middle nine tenths, so that one odd prompt does not hide that the others are alike.
    const uint64_t low = numbers[n / 20], high = numbers[n - 1 - n / 20];
    if (high < low + low / 2)
        add(warnings,
            mem_format("nine in ten prompts have %d to %d tokens: much shorter and longer prompts will be kept whole",
                       (int)low, (int)high));
    for (int i = 0; i < n; i++)
        numbers[i] = fnv1a(FNV_START, rows->rows[i].tokens, (size_t)rows->rows[i].n * sizeof *rows->rows[i].tokens);
    const int copies = n - count_different(numbers, n, &largest);
    if (copies * 10 > n)
        add(warnings, mem_format("%d of %d prompts are copies of others: they show nothing new", copies, n));
    for (int i = 0; i < n; i++)
        numbers[i] = answers[i];
    count_different(numbers, n, &largest);
    if (largest * 2 > n)
        add(warnings,
            mem_format("%d of %d answers from full prompts are the same: pruning can hit it by chance", largest, n));
    free(numbers);
    return warnings;
}
