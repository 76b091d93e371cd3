// SPDX-License-Identifier: Apache-2.0
// The kept rows of a conversation, turn by turn. A finished turn keeps its rows in their order, so that the worker
// group's prefix cache holds them. The answer of the turn is kept whole. Then come, ascending, the tokens that the next
// selection keeps and that have no row yet: spans recalled from earlier turns, then the new turn.
//
// Recalled rows need no other row to be computed again, because attention follows the order of rows and positions only
// enter RoPE. A selection that keeps all tokens because no rate is sure enough gives the rows of a whole prompt.
//
// Rows depend on the selections alone, and a selection on (conversation, speculator, policy). Plain data; one thread.
#pragma once

#include "router/core/selection_cache.h"

struct conversation {
    uint64_t scorer;          // the scorer of its selections, see struct core_node; 0: several scorers
    int turn;                 // the turn whose selection is added next; the number of finished turns: the whole prompt
    struct token_range *rows; // [n_rows] in the order of the rows, neighbours joined; owned
    int n_rows, capacity;
    int tokens;           // tokens in the rows
    int frozen, recalled; // rows before the latest selection, and tokens of earlier turns that it added
    uint8_t *has_row;     // [tokens of the prompt] owned
};

struct conversation *conversation_create(int n_tokens); // n_tokens: the whole prompt
void conversation_free(struct conversation *c);         // NULL is fine

// Adds the tokens that the selection keeps and that have no row yet. `fresh`: the first token after the answers so far.
void conversation_add_selection(struct conversation *c, const struct selection *selection, int fresh);
void conversation_add_answer(struct conversation *c, const struct prompt_turn *turn); // moves to the next turn
