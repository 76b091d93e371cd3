// SPDX-License-Identifier: Apache-2.0
#include "lib/base/random_number.h"

#include <stddef.h>
#include <sys/random.h>
#include <sys/types.h>

#include "lib/base/invariant.h"

enum { NUMBERS = 32 }; // 256 bytes: the kernel delivers this many without interruption

uint64_t random_number(void)
{
    static _Thread_local uint64_t numbers[NUMBERS];
    static _Thread_local size_t left;
    if (!left) {
        ssize_t n = getrandom(numbers, sizeof numbers, 0);
        INVARIANT(n == (ssize_t)sizeof numbers, "getrandom() returned %zd of %zu bytes", n, sizeof numbers);
        left = NUMBERS;
    }
    uint64_t number = numbers[--left];
    numbers[left] = 0; // so that the memory never has a number that is in use
    return number;
}
