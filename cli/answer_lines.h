// SPDX-License-Identifier: Apache-2.0
// The output of `forepack batch` when a run is resumed: JSON Lines with the answers of earlier runs. One thread.
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/status.h"

// Returns true if the answer with this id is to be copied; false if the output already has it.
typedef bool answer_line_fn(void *arg, const char *id);

// Copies and flushes the complete answers. Answers of failed and aborted requests are left out, and so is a last line
// that is the beginning of an answer. Any other line is INVALID: the file was named by mistake. Sentences begin with
// "--output PATH".
enum status answer_lines_copy(const char *path, FILE *from, FILE *to, answer_line_fn *copies, void *arg);
