// SPDX-License-Identifier: Apache-2.0
// The finished turns of a conversation. A message of the assistant answers the prompt that ends with the generation
// prompt; the same text stands in front of the message in most templates. It is looked for, since templates put text of
// their own between it and a tool call, which the model generated.
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/chat_parts.h"

// The prompt of each turn has all spans before it. This bounds the time and the pinned ranges of a conversation whose
// history has very many short messages.
enum { TURN_SPANS_MAX = 1 << 17 };

static bool is_answer(const struct chat_rendering *r, int tag)
{
    if (tag < 0 || (size_t)tag >= json_array_size(r->messages)) return false;
    const char *role = json_string_value(json_object_get(json_array_get(r->messages, (size_t)tag), "role"));
    return role && strcmp(role, "assistant") == 0;
}

// The end of the last place in text [start, end) that has the `n` bytes of `part`; 0: there is none.
static size_t last_end_of(const char *text, size_t start, size_t end, const char *part, size_t n)
{
    for (size_t at = end; at >= start + n; at--)
        if (memcmp(text + at - n, part, n) == 0) return at;
    return 0;
}

// Where the answer begins in the frame [start, end) in front of its text: behind the longest end of the generation
// prompt that the frame has.
static size_t answer_start(const struct jinja_output *output, size_t start, size_t end)
{
    enum { LONGEST = 256 };
    size_t prompt_start = output->n_spans ? output->spans[output->n_spans - 1].end : 0;
    size_t n = output->text_bytes - prompt_start;
    for (n = n < LONGEST ? n : LONGEST; n > 0; n--) {
        size_t at = last_end_of(output->text, start, end, output->text + output->text_bytes - n, n);
        if (at) return at;
    }
    return end;
}

// The first token that begins at the byte or behind it.
static int token_at(const struct chat_rendering *r, size_t byte)
{
    int low = 0, high = r->n_ids;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (r->starts[middle] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The part in front of the answer whose first span is number `span`.
static struct chat_part part_before(const struct chat_rendering *r, int span)
{
    const struct jinja_span *spans = r->output->spans;
    size_t bytes = answer_start(r->output, span ? spans[span - 1].end : 0, spans[span].start);
    return (struct chat_part){spans[span].tag, span, bytes, token_at(r, bytes)};
}

// The end of the answer whose first span is number `*span`, with the frame behind it: the next message's text. *span
// becomes the number of that text's span.
static int answer_end(const struct chat_rendering *r, int *span)
{
    const struct jinja_output *output = r->output;
    int tag = output->spans[*span].tag;
    while (*span < output->n_spans && output->spans[*span].tag == tag)
        ++*span;
    return *span < output->n_spans ? token_at(r, output->spans[*span].start) : r->n_ids;
}

int chat_turns(const struct chat_rendering *rendering, int turn_tokens, struct prompt_turn **turns_p)
{
    struct prompt_turn *turns = NULL;
    int n = 0, capacity = 0, n_spans = 0; // n_spans: of the prompts of all turns
    *turns_p = NULL;
    for (int span = 0; span < rendering->output->n_spans && n <= PROMPT_TURNS_MAX;) {
        if (!is_answer(rendering, rendering->output->spans[span].tag)) {
            span++;
            continue;
        }
        struct chat_part part = part_before(rendering, span);
        int end = answer_end(rendering, &span);
        if (n && part.n_ids <= turns[n - 1].answer_end) { // two messages of the assistant are one answer
            turns[n - 1].answer_end = end;
        } else if (part.n_ids > 0 && part.n_ids < end) {
            n_spans += part.n_spans;
            if (n_spans > TURN_SPANS_MAX) {
                prompt_turns_free(turns, n);
                return 0;
            }
            MEM_GROW(turns, n, capacity);
            turns[n] = (struct prompt_turn){.end = part.n_ids, .answer_end = end};
            turns[n].n_pinned = chat_pinned(rendering, &part, turn_tokens, &turns[n].pinned);
            n++;
        }
    }
    if (n && turns[n - 1].answer_end >= rendering->n_ids) { // the conversation ends with it
        n--;
        free(turns[n].pinned);
    }
    if (n > PROMPT_TURNS_MAX) {
        prompt_turns_free(turns, n);
        n = 0;
        turns = NULL;
    }
    *turns_p = turns;
    return n;
}
