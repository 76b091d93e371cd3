// SPDX-License-Identifier: Apache-2.0
// The rows of a conversation, turn by turn. The rows are the kept tokens, in the order in which worker groups compute
// them.
//
// A finished turn keeps its rows in their order, so that the worker group's prefix cache still holds them. The answer
// of the turn follows with all its tokens. Each further selection appends the tokens that it keeps and that have no row
// yet, in ascending order. First come tokens that earlier turns pruned and this selection recalls, then tokens of the
// new turn.
//
// A recalled token does not change the rows before it. Attention follows the order of the rows, and token positions
// enter only RoPE. If a selection keeps all tokens, the rows are the whole prompt in its own order. This happens if no
// keep rate is likely enough to reach the quality, or if no calibration applies.
//
// Rows depend only on the selections. A selection depends only on the conversation, the options and the speculator's
// model and build. Plain data; one thread.
#pragma once

#include "router/core/selection_cache.h"

struct conversation {
    uint64_t scorer;          // scorer of the selections (core_node.scorer); 0: they come from several scorers
    int turn;                 // index of the turn whose selection is added next; n_turns: the whole prompt
    struct token_range *rows; // [n_rows] kept ranges in the order of the rows; ranges that touch are joined; owned
    int n_rows, capacity;
    int tokens;       // number of tokens in `rows`
    int frozen,       // number of tokens that had rows before the latest selection was added
        recalled;     // number of earlier turns' tokens that the latest selection added
    uint8_t *has_row; // [tokens of the whole prompt] 1 if the token has a row; owned
};

struct conversation *conversation_create(int n_tokens); // n_tokens: tokens of the whole prompt
void conversation_free(struct conversation *c);         // NULL is fine

// Appends the tokens that the selection keeps and that have no row yet. `fresh` is the index of the first token after
// the answers so far.
void conversation_add_selection(struct conversation *c, const struct selection *selection, int fresh);
void conversation_add_answer(struct conversation *c, const struct prompt_turn *turn); // moves to the next turn
