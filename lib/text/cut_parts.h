// SPDX-License-Identifier: Apache-2.0
// Private to cut.c and cut_json.c.
#pragma once

#include "lib/base/mem.h"
#include "lib/text/cut.h"

// Returns true for a blank of JSON, which is also a blank between words.
static inline bool cut_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Appends a unit. Ranges of no bytes are left out.
static inline void cut_add(struct cut_units *units, struct cut_unit unit)
{
    if (unit.range.start == unit.range.end) return;
    MEM_GROW(units->units, units->n, units->capacity);
    units->units[units->n++] = unit;
}

// Divides the text if it is a list or an object of JSON. Returns false, without a unit, if it is not.
bool cut_json(const char *text, size_t n, struct cut_units *units);
// Returns true if the text is a list or an object of JSON.
bool cut_is_json(const char *text, size_t n);
