// SPDX-License-Identifier: Apache-2.0
// A byte map of the prompt says which tokens have a row already.
#include "router/core/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

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

// Returns the end of the run of tokens from `token` on that have a row (has_row 1) or have none (0). At most `end`.
static int32_t run_end(const struct conversation *c, int32_t token, int32_t end, int has_row)
{
    const uint8_t *other = memchr(c->has_row + token, has_row ? 0 : 1, (size_t)(end - token));
    return other ? (int32_t)(other - c->has_row) : end;
}

static void rows_append(struct conversation *c, int32_t token, int32_t end)
{
    memset(c->has_row + token, 1, (size_t)(end - token));
    c->tokens += end - token;
    if (c->n_rows && c->rows[c->n_rows - 1].last + 1 == token) {
        c->rows[c->n_rows - 1].last = end - 1;
        return;
    }
    MEM_GROW(c->rows, c->n_rows, c->capacity);
    c->rows[c->n_rows++] = (struct token_range){token, end - 1};
}

// Appends the tokens in [token, end) that have no row. Returns how many of the added tokens are before `fresh`.
static int rows_add(struct conversation *c, int32_t token, int32_t end, int32_t fresh)
{
    int before = 0;
    while (token < end) {
        int32_t first = run_end(c, token, end, 1);
        if (first == end) break;
        token = run_end(c, first, end, 0);
        rows_append(c, first, token);
        if (first < fresh) before += (token < fresh ? token : fresh) - first;
    }
    return before;
}

// Removes all rows. A selection that keeps all tokens then adds them in the order of the prompt.
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
        int before = rows_add(c, selection->kept[k].first, selection->kept[k].last + 1, fresh);
        if (c->frozen) c->recalled += before;
    }
}

void conversation_add_answer(struct conversation *c, const struct prompt_turn *turn)
{
    rows_add(c, turn->end, turn->answer_end, 0);
    c->turn++;
}
