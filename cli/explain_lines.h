// SPDX-License-Identifier: Apache-2.0
// The lines of `forepack explain`: what each stage decided for a request, and why.
#pragma once

#include <jansson.h>
#include <stdio.h>

// Prints about ten lines for an object of answer_json() with "stages". A stage that the request did not reach has no
// line.
void explain_lines_print(const json_t *answer, FILE *file);
