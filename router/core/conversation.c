// SPDX-License-Identifier: Apache-2.0
// See conversation.h. A byte map of the prompt tells which tokens have a row already.
#include "router/core/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct conversation *conversation_create(int n_tokens)
{
    struct conversation *c = mem_alloc(sizeof *c);
    c->has_row = mem_alloc((size_t)n_tokens);
    return c;
}

void conversation_free(struct conversation *c)
{
    if (!c) return;
    free(c->rows);
    free(c->has_row);
    free(c);
}

static void row_add(struct conversation *c, int32_t token)
{
    if (c->has_row[token]) return;
    c->has_row[token] = 1;
    c->tokens++;
    if (c->n_rows && c->rows[c->n_rows - 1].last + 1 == token) {
        c->rows[c->n_rows - 1].last = token;
        return;
    }
    MEM_GROW(c->rows, c->n_rows, c->capacity);
    c->rows[c->n_rows++] = (struct token_range){token, token};
}

// A selection of the whole prompt has its tokens in their own order.
static void rows_restart(struct conversation *c)
{
    for (int i = 0; i < c->n_rows; i++)
        memset(c->has_row + c->rows[i].first, 0, (size_t)(c->rows[i].last - c->rows[i].first) + 1);
    c->n_rows = c->tokens = 0;
}

static bool keeps_all(const struct selection *selection)
{
    return selection->reason == RATE_UNSURE || selection->reason == RATE_UNCALIBRATED;
}

void conversation_add_selection(struct conversation *c, const struct selection *selection, int fresh)
{
    if (keeps_all(selection) && !(c->n_rows == 1 && c->rows[0].first == 0)) rows_restart(c);
    c->frozen = c->tokens;
    c->recalled = 0;
    for (int k = 0; k < selection->n_kept; k++) {
        for (int32_t token = selection->kept[k].first; token <= selection->kept[k].last; token++) {
            c->recalled += c->frozen && token < fresh && !c->has_row[token];
            row_add(c, token);
        }
    }
}

void conversation_add_answer(struct conversation *c, const struct prompt_turn *turn)
{
    for (int32_t token = turn->end; token < turn->answer_end; token++)
        row_add(c, token);
    c->turn++;
}
