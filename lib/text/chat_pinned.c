// SPDX-License-Identifier: Apache-2.0
// Finds the tokens of a conversation that speculative prefill must keep, from the origins of their bytes. See
// chat_render().
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/chat_parts.h"

// Text of a part of a rendering, by origin.
struct layout {
    const struct chat_rendering *rendering;
    const struct chat_part *part;
    struct text_range *pinned;
    int n_pinned;
    struct text_range last_turn; // text of the last user message
    size_t first_turn;           // start of the first message that is not an instruction
    size_t last_frame;           // end of the last turn (see chat_render()) before the last user message
};

static bool message_has_role(const json_t *messages, int i, const char *role)
{
    const char *own = json_string_value(json_object_get(json_array_get(messages, (size_t)i), "role"));
    return own && !strcmp(own, role);
}

static bool is_instruction(const struct layout *l, int tag)
{
    int n = (int)json_array_size(l->rendering->messages);
    if (tag >= n) return tag == n + CHAT_TAG_TOOLS;
    return message_has_role(l->rendering->messages, tag, "system") ||
           message_has_role(l->rendering->messages, tag, "developer");
}

static bool is_turn(const struct layout *l, int tag)
{
    return tag < (int)json_array_size(l->rendering->messages) && !is_instruction(l, tag);
}

static int last_user_message(const struct layout *l)
{
    int i = l->part->n_messages - 1;
    while (i >= 0 && !message_has_role(l->rendering->messages, i, "user"))
        i--;
    return i;
}

static void find_turns(struct layout *l)
{
    int user = last_user_message(l);
    l->first_turn = l->part->bytes;
    for (int i = l->part->n_spans; i-- > 0;)
        if (is_turn(l, l->rendering->output->spans[i].tag)) l->first_turn = l->rendering->output->spans[i].start;
    for (int i = 0; i < l->part->n_spans; i++) {
        const struct jinja_span *span = &l->rendering->output->spans[i];
        if (span->tag == user) {
            if (l->last_turn.start == l->last_turn.end) l->last_turn.start = span->start;
            l->last_turn.end = span->end;
        } else if (is_turn(l, span->tag) && l->last_turn.start == l->last_turn.end) {
            l->last_frame = span->end;
        }
    }
}

static void pin(struct layout *l, size_t start, size_t end)
{
    if (start >= end) return;
    if (l->n_pinned && l->pinned[l->n_pinned - 1].end == start)
        l->pinned[l->n_pinned - 1].end = end;
    else
        l->pinned[l->n_pinned++] = (struct text_range){start, end};
}

// Pins text [start, end) of the template.
static void pin_frame(struct layout *l, size_t start, size_t end)
{
    pin(l, start, end < l->first_turn ? end : l->first_turn);
    size_t from = start > l->first_turn ? start : l->first_turn;
    pin(l, from > l->last_frame ? from : l->last_frame, end);
}

static void find_pinned_text(struct layout *l)
{
    size_t at = 0;
    l->pinned = mem_alloc_array(3 * (size_t)l->part->n_spans + 3, sizeof *l->pinned);
    find_turns(l);
    for (int i = 0; i < l->part->n_spans; i++) {
        const struct jinja_span *span = &l->rendering->output->spans[i];
        pin_frame(l, at, span->start);
        if (is_instruction(l, span->tag)) pin(l, span->start, span->end);
        at = span->end;
    }
    pin_frame(l, at, l->part->bytes);
}

// Returns the end of the text of token i, which is the start of the next token.
static size_t token_end(const struct layout *l, int i)
{
    const size_t *starts = l->rendering->starts;
    size_t end = i + 1 < l->part->n_ids ? starts[i + 1] : l->part->bytes;
    return end == starts[i] ? end + 1 : end; // token i shares a character with the next token
}

// Finds the tokens that contain a byte of the last user turn. Returns {0, -1} if there are none.
static struct token_range last_turn_tokens(const struct layout *l)
{
    struct token_range turn = {0, -1};
    for (int i = 0; i < l->part->n_ids && l->rendering->starts[i] < l->last_turn.end; i++) {
        if (token_end(l, i) <= l->last_turn.start) continue;
        if (turn.last < 0) turn.first = i;
        turn.last = i;
    }
    return turn;
}

static bool turn_pins_token(struct token_range turn, int turn_tokens, int i)
{
    if (i < turn.first || i > turn.last) return false;
    if (turn.last - turn.first < turn_tokens) return true;
    return i < turn.first + turn_tokens / 2 || i > turn.last - turn_tokens / 2;
}

// Collects the tokens that contain a pinned byte, and the pinned tokens of the last user turn.
static int find_pinned_tokens(const struct layout *l, int turn_tokens, struct token_range **pinned_p)
{
    const size_t *starts = l->rendering->starts;
    struct token_range *pinned = mem_alloc_array((size_t)l->n_pinned + 2, sizeof *pinned);
    struct token_range turn = last_turn_tokens(l);
    int n = 0;
    for (int i = 0, range = 0; i < l->part->n_ids; i++) {
        while (range < l->n_pinned && l->pinned[range].end <= starts[i])
            range++;
        bool text_is_pinned = range < l->n_pinned && l->pinned[range].start < token_end(l, i);
        if (!text_is_pinned && !turn_pins_token(turn, turn_tokens, i)) continue;
        if (n && pinned[n - 1].last == i - 1)
            pinned[n - 1].last++;
        else
            pinned[n++] = (struct token_range){i, i};
    }
    *pinned_p = pinned;
    return n;
}

int chat_pinned(const struct chat_rendering *rendering, const struct chat_part *part, int turn_tokens,
                struct token_range **pinned_p)
{
    struct layout layout = {.rendering = rendering, .part = part};
    find_pinned_text(&layout);
    int n = find_pinned_tokens(&layout, turn_tokens, pinned_p);
    free(layout.pinned);
    return n;
}
