// SPDX-License-Identifier: Apache-2.0
// Passages and questions of a file, read by ruler_passages_read() of ruler.h.
#pragma once

#include "bench/ruler.h"

struct ruler_question {
    char *text;
    char **answers; // [n_answers]
    int n_answers;
    int *needed; // [n_needed] passages that the answer needs
    int n_needed;
};

struct ruler_passages {
    char **passages; // [n_passages]
    int n_passages;
    struct ruler_question *questions; // [n_questions]
    int n_questions;
    int passage_room, question_room; // allocated elements
};
