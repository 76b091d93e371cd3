// SPDX-License-Identifier: Apache-2.0
#include "lib/text/logit_bias.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static enum status fail_duplicate(int64_t id)
{
    return status_fail(STATUS_INVALID, "logit_bias: token %lld is given twice", (long long)id);
}

// Checks a number. The comparisons are false for NaN.
static enum status number_check(int64_t id, double number)
{
    if (number >= -LOGIT_BIAS_MAX && number <= LOGIT_BIAS_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "logit_bias: token %lld has %.10g: must be from %d to %d", (long long)id, number,
                       -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX);
}

static enum status count_check(int64_t n)
{
    if (n <= LOGIT_BIAS_TOKENS_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "logit_bias: %lld tokens given, at most %d are allowed", (long long)n,
                       LOGIT_BIAS_TOKENS_MAX);
}

// Returns the place of `id` in the order of ids.
static int place_of(const struct logit_bias *bias, int64_t id)
{
    int low = 0, high = bias->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (bias->ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Makes room for one more token at `at`. Capacities are powers of two.
static void make_room(struct logit_bias *bias, int at)
{
    size_t n = (size_t)bias->n, after = (size_t)(bias->n - at);
    if ((n & (n - 1)) == 0) {
        size_t capacity = n ? 2 * n : 1;
        bias->ids = mem_resize(bias->ids, capacity, sizeof *bias->ids);
        bias->numbers = mem_resize(bias->numbers, capacity, sizeof *bias->numbers);
    }
    memmove(bias->ids + at + 1, bias->ids + at, after * sizeof *bias->ids);
    memmove(bias->numbers + at + 1, bias->numbers + at, after * sizeof *bias->numbers);
    bias->n++;
}

enum status logit_bias_add(struct logit_bias *bias, int64_t id, double number)
{
    if (id < 0 || id > INT32_MAX)
        return status_fail(STATUS_INVALID, "logit_bias: %lld is not a token id", (long long)id);
    TRY(number_check(id, number));
    TRY(count_check((int64_t)bias->n + 1));
    int at = place_of(bias, id);
    if (at < bias->n && bias->ids[at] == id) return fail_duplicate(id);
    make_room(bias, at);
    bias->ids[at] = (int32_t)id;
    bias->numbers[at] = (float)number;
    return STATUS_OK;
}

enum status logit_bias_check(const struct logit_bias *bias, int vocab_size)
{
    TRY(count_check(bias->n));
    for (int i = 0; i < bias->n; i++) {
        if (bias->ids[i] < 0 || bias->ids[i] >= vocab_size) {
            return status_fail(STATUS_INVALID, "logit_bias: token %d is outside the vocabulary of %d tokens",
                               bias->ids[i], vocab_size);
        }
        TRY(number_check(bias->ids[i], (double)bias->numbers[i]));
        if (i && bias->ids[i] == bias->ids[i - 1]) return fail_duplicate(bias->ids[i]);
        if (i && bias->ids[i] < bias->ids[i - 1])
            return status_fail(STATUS_INVALID, "logit_bias: token ids must be ascending");
    }
    return STATUS_OK;
}

struct logit_bias logit_bias_copy(const struct logit_bias *from)
{
    if (!from->n) return (struct logit_bias){0};
    size_t n = 1;
    while (n < (size_t)from->n) // make_room() expects this capacity
        n *= 2;
    struct logit_bias to = {mem_alloc_array(n, sizeof *to.ids), mem_alloc_array(n, sizeof *to.numbers), from->n};
    memcpy(to.ids, from->ids, (size_t)from->n * sizeof *to.ids);
    memcpy(to.numbers, from->numbers, (size_t)from->n * sizeof *to.numbers);
    return to;
}

void logit_bias_free(struct logit_bias *bias)
{
    free(bias->ids);
    free(bias->numbers);
    *bias = (struct logit_bias){0};
}
