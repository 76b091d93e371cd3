// SPDX-License-Identifier: Apache-2.0
// The lines of `forepack chat` that start with a slash.
#pragma once

#include "cli/request.h"

// Adds a message to the conversation. Takes ownership of `content`, which is on the heap.
void chat_add(struct request_spec *spec, const char *role, char *content);
void chat_remove_last(struct request_spec *spec);

// Sets the system prompt, which is the first message; NULL or "": none.
void chat_set_system(struct request_spec *spec, const char *text);

// Runs the command in `line`, which starts with a slash. Sets *question_p to a question that the command sends, on the
// heap, or to NULL. Sets *leave_p to true if the command ends the chat. For an unknown command or a wrong argument,
// returns INVALID with an error message and sets neither.
enum status chat_command(struct request_spec *spec, const char *line, char **question_p, bool *leave_p);
