// SPDX-License-Identifier: Apache-2.0
// A task document under construction. A class of documents (bench/task_*.c) plants the sentences of its items, fills
// the rest of the room with sentences about the town, and asks questions about items. draft_finish() makes the
// document. After a failure, which sets draft->status, functions do nothing.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bench/tasks.h"
#include "lib/base/random.h"

enum { DRAFT_ITEMS_MAX = 64 };
#define DRAFT_ITEM(item) ((uint64_t)1 << (item))

struct draft_line {
    char *text; // a sentence, or several lines that form a separate paragraph
    int item;   // the item of the line, 0..DRAFT_ITEMS_MAX-1; -1: none
};

struct draft_question {
    char *text, *answer;
    uint64_t needs; // set of DRAFT_ITEM: the answer follows from the lines of these items
};

struct draft {
    const struct tokenizer *tokenizer;
    struct random_source random;
    const struct task_request *request;
    bool system; // the chat begins with a system message
    enum status status;
    struct draft_line *lines; // [n_lines]
    int n_lines, capacity;
    int n_head;                       // number of lines at the start, which are not shuffled
    int tokens;                       // tokens of the lines
    int room;                         // limit of `tokens`, which the first question sets
    struct draft_question *questions; // [request->questions]
    int n_questions;
};

// Adds a line if there is room for it. Takes ownership of `text`. Returns false if there was no room or the draft has
// failed.
bool draft_plant(struct draft *d, int item, char *text);
// Adds a line that a question needs. If there is no room, the draft fails.
void draft_need(struct draft *d, int item, char *text);
// Adds a line that the document begins with, as a separate paragraph. Call it before other lines are added.
void draft_need_head(struct draft *d, int item, char *text);

// Fills the room with sentences about the town and shuffles all lines.
void draft_fill(struct draft *d);

int draft_count(const struct draft *d, int item); // number of lines of the item

// Asks a question. Takes ownership of both texts. The answer is in the plain form, with a leading blank or line break.
// The first question comes before the first line, since it determines the room.
void draft_ask(struct draft *d, char *text, char *answer, uint64_t needs);
bool draft_wants_questions(const struct draft *d);
// Leaves room for a first question of `tokens` tokens, including BOS and the words around the question.
void draft_reserve(struct draft *d, int tokens);

void draft_free(struct draft *d);

// Plants 3 to 6 facts that no question needs, as items from `item` on.
void draft_plant_other_facts(struct draft *d, int item);

// Makes the document from the lines and the questions.
enum status draft_finish(struct draft *d, struct task_document *document);

// Draft a document of each class.
void task_needle(struct draft *d);
void task_facts(struct draft *d);
void task_two_hop(struct draft *d);
void task_count(struct draft *d);
void task_copy(struct draft *d);
void task_instruction(struct draft *d);
