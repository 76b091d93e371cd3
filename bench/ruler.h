// SPDX-License-Identifier: Apache-2.0
// The thirteen tasks of RULER (arXiv 2404.06654), written from their description with words of this repository. Each
// document is a prompt of any length and the strings that a right answer contains.
//
//   niah_single_1..3     one needle among repeated lines (1) or prose (2, 3); the value is a number (1, 2) or a UUID
//   (3) niah_multikey_1..3   four needles in prose (1), or nothing but needles: words to numbers (2), UUIDs to UUIDs
//   (3) niah_multivalue      four values of one key niah_multiquery      four keys, all of them asked for vt a chain of
//   assignments: all variables with a value, five names cwe                  the ten words that a list repeats most
//   often fwe                  the three most frequent coded words; frequencies follow a zeta distribution qa_1, qa_2
//   a question about one passage among others, or about two that depend on each other
//
// The same request gives the same document, and seeds mean the same as in tasks.h.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/text/tokenizer.h"

enum ruler_task {
    RULER_SINGLE_1,
    RULER_SINGLE_2,
    RULER_SINGLE_3,
    RULER_MULTIKEY_1,
    RULER_MULTIKEY_2,
    RULER_MULTIKEY_3,
    RULER_MULTIVALUE,
    RULER_MULTIQUERY,
    RULER_VT,
    RULER_CWE,
    RULER_FWE,
    RULER_QA_1,
    RULER_QA_2,
    RULER_TASKS
};
#define RULER_NAMES                                                                                                    \
    "niah_single_1|niah_single_2|niah_single_3|niah_multikey_1|niah_multikey_2|niah_multikey_3|niah_multivalue|"       \
    "niah_multiquery|vt|cwe|fwe|qa_1|qa_2"

enum { RULER_TOKENS_MIN = 1024, RULER_TOKENS_MAX = 1 << 22, RULER_ANSWER_TOKENS_MAX = 128 };

// Questions about passages, read from a file of the user (ruler_passages.c).
struct ruler_passages;

struct ruler_request {
    enum ruler_task task;
    int tokens; // RULER_TOKENS_MIN..RULER_TOKENS_MAX; limit of prompt and answer together
    uint64_t seed, number;
    const struct tokenizer *tokenizer; // NULL: the length is estimated by characters_per_token
    double characters_per_token;
    const struct ruler_passages *passages; // qa_1 and qa_2; NULL: written passages
};

struct ruler_document {
    char *prompt;        // ends with the beginning of the answer
    size_t prefix_bytes; // bytes of the beginning of the answer, which chats leave out
    int tokens;          // tokens of the prompt, counted or estimated
    char **answers;      // [n_answers]
    int n_answers;
    bool any;          // one of the answers suffices; otherwise the score is the share of answers that are found
    int answer_tokens; // limit of the answer
};

const char *ruler_name(enum ruler_task task);
bool ruler_parse(const char *name, enum ruler_task *task_p);

// Returns INVALID if so few tokens have no room for the task, or if the passages are too few.
enum status ruler_make(const struct ruler_request *request, struct ruler_document *document_p);
void ruler_document_free(struct ruler_document *document);

// Returns the score of an answer from 0 to 1. Upper and lower case are equal.
double ruler_score(const struct ruler_document *document, const char *answer);

// Returns {"id", "task", "form", "tokens", "prompt", "answer_prefix", "answers", "match", "max_tokens"}.
json_t *ruler_row(const struct ruler_request *request, const struct ruler_document *document);

// Reads a file in the JSON form of SQuAD or HotpotQA. Returns INVALID with the first defect.
enum status ruler_passages_read(const char *path, struct ruler_passages **passages_p);
void ruler_passages_free(struct ruler_passages *passages); // NULL is fine
