// SPDX-License-Identifier: Apache-2.0
// The kept rows of a conversation, turn by turn. A finished turn keeps the rows that it had, in their order, so that
// the worker group's prefix cache holds them; its answer is kept whole; then come, ascending, the tokens that the next
// selection keeps and the rows so far lack: spans recalled from earlier turns, then the new turn. Attention follows the
// order of rows and positions only enter RoPE, so recalled rows need no other row to be computed again. A selection
// that keeps all tokens because no rate is sure enough gives the rows of a whole prompt.
//
// Rows are a property of the selections, and these of (conversation, speculator, policy). Plain data; one thread.
#pragma once

#include "router/core/selection_cache.h"

struct conversation {
    uint64_t scorer;          // whose selections it has, see struct core_node; 0: of several
    int turn;                 // whose selection is added next; as many as finished turns: that of the whole prompt
    struct token_range *rows; // [n_rows] in the order of the rows, neighbours joined; owned
    int n_rows, capacity;
    int tokens;           // in the rows
    int frozen, recalled; // by the latest selection: rows before it, and tokens of earlier turns that it added
    uint8_t *has_row;     // [tokens of the prompt] owned
};

struct conversation *conversation_create(int n_tokens); // of the whole prompt
void conversation_free(struct conversation *c);         // NULL is fine

// Adds what the selection keeps beyond the rows. `fresh`: the first token behind the answers so far.
void conversation_add_selection(struct conversation *c, const struct selection *selection, int fresh);
void conversation_add_answer(struct conversation *c, const struct prompt_turn *turn); // and goes on to the next turn
