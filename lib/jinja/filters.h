// SPDX-License-Identifier: Apache-2.0
// What the files of filters share. Private to jinja/.
//
//   filters.c            the list of all filters, those that are refused, attributes of elements
//   filters_text.c       of strings
//   filters_number.c     of numbers
//   filters_sequence.c   of lists and dicts: length, order, groups
//   filters_generator.c  that return a generator, which computes its elements on demand
#pragma once

#include "lib/jinja/value.h"

bool argument_given(struct value v); // neither missing nor None

// The attribute "a.b.0" of an element, `otherwise` where it is undefined; the element itself without a path.
struct value item_path(struct run *run, struct value item, struct value path, struct value otherwise);
struct value fold_case(struct run *run, struct value v, bool sensitive); // strings to lower case unless `sensitive`

// Each ends with a row without name.
extern const struct function text_filters[], number_filters[], sequence_filters[], generator_filters[];
