// SPDX-License-Identifier: Apache-2.0
// The documents of `forepack calibrate`: JSON Lines, each with a prompt, token_ids or messages. One thread.
#pragma once

#include "lib/text/generation.h"
#include "lib/text/tokenizer.h"

struct calibrate_row {
    int32_t *tokens; // [n] owned
    int n;
    struct token_range *pinned; // [n_pinned] tokens of a chat that every rate keeps; owned
    int n_pinned;
    char *answer; // the right answer; NULL: the answer to the full prompt counts as right; owned
    int group;
};

struct calibrate_rows {
    struct calibrate_row *rows; // [n]
    int n, capacity;
    char **groups; // [n_groups] names of the tasks; owned
    int n_groups;
};

// Reads the documents. Renders chats with the chat template in `model_dir`, and pins tokens as the router does
// (chat_render()). Returns STATUS_INVALID with an error message that names the line. Call calibrate_rows_fini()
// whatever the status.
enum status calibrate_rows_read(const char *path, const char *model_dir, const struct tokenizer *tokenizer,
                                int pinned_turn_tokens, struct calibrate_rows *rows);
void calibrate_rows_fini(struct calibrate_rows *rows);
