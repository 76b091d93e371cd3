// SPDX-License-Identifier: Apache-2.0
// The documents of `forepack calibrate`: JSON Lines with a prompt, token_ids or messages each. One thread.
#pragma once

#include "lib/text/generation.h"
#include "lib/text/tokenizer.h"

struct calibrate_row {
    int32_t *tokens; // [n] owned
    int n;
    struct token_range *pinned; // [n_pinned] of a chat: kept at every rate; owned
    int n_pinned;
    char *answer; // NULL: that of the full prompt is right; owned
    int group;
};

struct calibrate_rows {
    struct calibrate_row *rows; // [n]
    int n, capacity;
    char **groups; // [n_groups] names of the tasks; owned
    int n_groups;
};

// Chats are rendered with the chat template in `model_dir`, and pinned as the router pins them (chat_render()). INVALID
// with the line that is wrong. Call calibrate_rows_fini() in any case.
enum status calibrate_rows_read(const char *path, const char *model_dir, const struct tokenizer *tokenizer,
                                int pinned_turn_tokens, struct calibrate_rows *rows);
void calibrate_rows_fini(struct calibrate_rows *rows);
