// SPDX-License-Identifier: Apache-2.0
// Documents with questions whose answers can be checked exactly. Pruning prompt tokens affects the classes of documents
// differently. A document is text about a harbour town with planted sentences. The right answer depends on a few of
// these sentences and cannot be guessed.
//
//   needle       one fact of 6 to 16: "The gate code of Mira Tolen is 4821."          " 4821"
//   facts        two to four facts, in the order in which the question names them      " 4821, 0093, 7712"
//   two_hop      "Mira Tolen keeps the grey boat." and the fact about her               " 4821"
//   count        how many parcels arrived for somebody, 1 to 6                         " 4"
//   copy         the lines of a named block of code-like lines                         "\n turn(41)\n rest(5)"
//   instruction  a fact, written as the first sentence of the prompt demands           " 1284"
//
// Every document has distractors of its class, and facts that no question asks for. In the plain form the prompt is the
// text, an empty line and "Question: ...\nAnswer:". In the chat form it is a ChatML prompt of one user message,
// sometimes after a system message, and the answer has no leading blank or line break. Only the plain form has BOS.
//
// The same request gives the same document. Its seed says what the document is for, so that no model is measured on
// documents with which it was trained or calibrated:
//   seeds      0 to   999   evaluation (forepack bench prefill-quality)
//   seeds  1,000 to 1,999   calibration (forepack calibrate)
//   seeds  2,000 and more   training
// Documents are independent for every (class, seed, number, length).
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/text/generation.h"
#include "lib/text/tokenizer.h"

enum task { TASK_NEEDLE, TASK_FACTS, TASK_TWO_HOP, TASK_COUNT, TASK_COPY, TASK_INSTRUCTION, TASKS };
#define TASK_NAMES "needle|facts|two_hop|count|copy|instruction"

enum {
    TASK_TOKENS_MIN = 128, // from 256 on, every class has room for the sentences that its question needs
    TASK_TOKENS_MAX = 1 << 20,
    TASK_QUESTIONS_MAX = 64,
    TASK_ANSWER_TOKENS = 64, // every answer is shorter, with one token for each digit and word
    TASK_EVALUATION_SEED_MAX = 999,
    TASK_CALIBRATION_SEED = 1000,
    TASK_TRAINING_SEED = 2000,
};

struct task_request {
    enum task task;
    bool chat;
    int tokens;            // TASK_TOKENS_MIN..TASK_TOKENS_MAX; the prompt is at most a sentence shorter
    uint64_t seed, number; // number below 2^32
    int questions;         // limit, from 1; further questions are turns after the first answer
};

struct task_question {
    char *turn; // NULL for the first question; else the text between the previous answer and this question's answer
    int32_t *turn_ids; // [n_turn]
    int n_turn;
    char *answer;
    int32_t *answer_ids; // [n_answer] with the token that ends the answer: EOS or <|im_end|>
    int n_answer;
    struct token_range *spans; // [n_spans] ranges of the prompt, ascending: the sentences that the answer needs
    int n_spans;
};

struct task_document {
    char *prompt; // ends where the first answer starts; special tokens of the chat form are spelled out
    int32_t *ids; // [n] tokens of the prompt
    int n;
    struct task_question *questions; // [n_questions]; there may be fewer than requested
    int n_questions;
};

const char *task_name(enum task task);
bool task_parse(const char *name, enum task *task_p);

// Returns UNSUPPORTED if the tokenizer has no EOS, or no ChatML tokens for the chat form. Returns INVALID if there is
// no room in so few tokens.
enum status task_make(const struct tokenizer *tokenizer, const struct task_request *request,
                      struct task_document *document_p);
void task_document_free(struct task_document *document);

// Returns {"id", "task", "form", "tokens", "prompt", "answer", "spans": [[first, last], ...]} for the first question.
// Ranges include both ends. With `token_ids` it also has "token_ids" and "answer_ids". If the request has several
// questions, "questions" is a list of {"question", "answer", "spans"} for the later questions, with "question_ids" and
// "answer_ids". A whole conversation is then token_ids, answer_ids, and question_ids and answer_ids of each later
// question.
json_t *task_row(const struct task_request *request, const struct task_document *document, bool token_ids);
