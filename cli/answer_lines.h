// SPDX-License-Identifier: Apache-2.0
// Reads the output of an earlier run of `forepack batch`, JSON Lines with answers, when the run is resumed. One thread.
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/status.h"

// Returns true if the answer with this id should be copied, false if the output already has an answer with this id.
typedef bool answer_line_fn(void *arg, const char *id);

// Copies and flushes the complete answers. Leaves out answers of failed and aborted requests, and a last line that is
// only the beginning of an answer. For any other line, returns INVALID, because the file was probably named by mistake.
// Error messages begin with "--output PATH".
enum status answer_lines_copy(const char *path, FILE *from, FILE *to, answer_line_fn *copies, void *arg);
