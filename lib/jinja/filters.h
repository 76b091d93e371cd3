// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the files of filters. Private to jinja/.
//
//   filters.c            the list of all filters, refused filters, attributes of elements
//   filters_text.c       filters of strings
//   filters_number.c     filters of numbers
//   filters_sequence.c   filters of lists and dicts: length, order, groups
//   filters_generator.c  filters that return a generator, which computes its elements on demand
#pragma once

#include "lib/jinja/value.h"

bool argument_given(struct value v); // true if it is neither missing nor None

// Returns the attribute of an element at `path`, such as "a.b.0", or `otherwise` if the attribute is undefined. Returns
// the element itself if there is no path.
struct value item_path(struct run *run, struct value item, struct value path, struct value otherwise);
// Converts strings to lower case unless `sensitive`.
struct value fold_case(struct run *run, struct value v, bool sensitive);

// Each ends with a row without name.
extern const struct function text_filters[], number_filters[], sequence_filters[], generator_filters[];
