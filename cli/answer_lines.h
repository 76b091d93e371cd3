// SPDX-License-Identifier: Apache-2.0
// The output of `forepack batch` when a run is resumed: JSON Lines with the answers of earlier runs. One thread.
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/status.h"

// Whether to copy the answer with this id; false if the output already has it.
typedef bool answer_line_fn(void *arg, const char *id);

// Copies and flushes the complete answers. Those of failed and aborted requests and a last line that is the beginning
// of an answer are left out. INVALID on any other line: the file was named by mistake. Sentences begin with
// "--output PATH".
enum status answer_lines_copy(const char *path, FILE *from, FILE *to, answer_line_fn *copies, void *arg);
