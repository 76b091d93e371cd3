// SPDX-License-Identifier: Apache-2.0
// Renders Jinja templates, as far as chat templates use the language: Jinja 3.1 in the environment that Hugging Face
// transformers gives to chat templates (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, a `tojson`
// without HTML escapes, `raise_exception`, `strftime_now`, `{% generation %}`). Values give the same texts, order and
// errors as Python's. These features are not supported:
// - include, import, from and extends: jinja_render() fails if it reaches the statement.
// - autoescape other than `{% autoescape false %}`: jinja_compile() fails.
// - `self`: an undefined variable.
// - the filters pprint, random, striptags, urlize and wordwrap: jinja_render() fails with an error that names them.
// - integers of more than 64 bits: an error.
//
// Template and inputs may be hostile. `struct jinja_limits` bounds the steps, nesting, output and memory of a
// rendering. A template has no access to files, clocks or other state than its inputs and `now`.
//
// Origins: each byte of the output has an origin, the template or a certain input. So a caller can tell its own text
// from its clients' text. Operations that copy text (concatenation, slices, replace, join, formatting, JSON, case) keep
// the origin of each byte. A value that is computed from several origins, such as a sum, counts as input.
//
// Threads: a template is immutable; any thread may render with it. Errors: status_message() is one sentence that names
// the line of the template.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "lib/base/status.h"

struct jinja_template;

// Longest source. A longer source is refused.
#define JINJA_SOURCE_LIMIT_BYTES ((size_t)1 << 20)

// Parses UTF-8 `source` [size_bytes]. Returns DATA for a syntax error, an unknown filter or test, or a syntax tree of
// more than 250 levels. Exception: an unknown filter or test in an `if` fails only in jinja_render(), if that part is
// reached.
enum status jinja_compile(const char *source, size_t size_bytes, struct jinja_template **template_p);
void jinja_free(struct jinja_template *t); // NULL is fine

// Limits of one rendering. A step is an evaluated expression, an element that is compared or looked up, or 16 bytes of
// text that are copied, compared or searched.
struct jinja_limits {
    size_t steps, output_bytes, memory_bytes;
    int depth; // nested expressions, statements, macro calls and values together
};
#define JINJA_LIMITS_DEFAULT ((struct jinja_limits){20000000, (size_t)64 << 20, (size_t)256 << 20, 1000})

enum { JINJA_TEMPLATE = -1 }; // origin of the template's own text; inputs have tags from 0 on

// A variable of the template. Its strings and numbers carry the tag as their origin.
struct jinja_input {
    const char *name;    // borrowed while jinja_render() runs, like all pointers here
    const json_t *value; // NULL: None
    int tag;             // JINJA_TEMPLATE: counts as text of the template
    bool tag_elements;   // element i of the list has the origin tag + i
    // Strings in objects under `value` that are fixed words, such as roles, count as text of the template.
    // `plain_member` is the name of the member with such a string; NULL: there is none. `plain_words` lists the words
    // and ends with NULL.
    const char *plain_member;
    const char *const *plain_words;
};

struct jinja_span {
    size_t start, end; // bytes, half-open
    int tag;
};

// Output of a rendering. The caller frees it by jinja_output_fini().
struct jinja_output {
    char *text; // UTF-8, NUL-terminated; may contain NULs
    size_t text_bytes;
    struct jinja_span *spans; // [n_spans] ascending, disjoint: the bytes that come from inputs
    int n_spans;
};

// Renders with the variables inputs [n]. `now` is the time of strftime_now. Returns INVALID if the template raised an
// error or exceeded a limit. `*output_p` is then unchanged.
enum status jinja_render(const struct jinja_template *t, const struct jinja_input *inputs, int n, const struct tm *now,
                         const struct jinja_limits *limits, struct jinja_output *output_p);
void jinja_output_fini(struct jinja_output *output);
