// SPDX-License-Identifier: Apache-2.0
// Renders a conversation, recording which bytes come from messages and which are pinned, then encodes the whole text at
// once. Bytes from messages are untrusted: special tokens are not recognised in them.
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "model/chat_parts.h"
#include "model/unicode.h"

struct rendering {
    const struct chat_template *chat;
    struct bytes text;
    struct text_range *contents, *pinned; // ascending, disjoint
    int n_contents, contents_capacity, n_pinned, pinned_capacity;
    bool pin;                    // text added now is pinned
    struct text_range last_turn; // content of the last user turn
};

static void add_range(struct text_range **ranges, int *n, int *capacity, size_t start, size_t end)
{
    if (start == end) return;
    if (*n && (*ranges)[*n - 1].end == start) {
        (*ranges)[*n - 1].end = end;
        return;
    }
    MEM_GROW(*ranges, *n, *capacity);
    (*ranges)[(*n)++] = (struct text_range){start, end};
}

static void emit_bytes(struct rendering *r, const char *text, size_t n)
{
    size_t start = r->text.n;
    bytes_add(&r->text, text, n);
    if (r->pin) add_range(&r->pinned, &r->n_pinned, &r->pinned_capacity, start, r->text.n);
}

// Text of the template.
static void emit(struct rendering *r, const char *text)
{
    emit_bytes(r, text, strlen(text));
}

// Text of a message; `pinned` for the system prompt.
static void emit_content(struct rendering *r, struct chat_message message, bool pinned)
{
    bool pin = r->pin;
    size_t start = r->text.n;
    r->pin = pinned;
    emit_bytes(r, message.content, message.content_bytes);
    add_range(&r->contents, &r->n_contents, &r->contents_capacity, start, r->text.n);
    if (!pinned) r->last_turn = (struct text_range){start, r->text.n}; // no content follows the last turn's
    r->pin = pin;
}

static bool is_role(struct chat_message message, const char *role)
{
    return !strcmp(message.role, role);
}

// White space of Python's str.strip(), which Jinja's trim uses.
static bool is_stripped(int32_t c)
{
    return unicode_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static struct chat_message trim_start(struct chat_message message)
{
    for (size_t length; message.content_bytes; message.content += length, message.content_bytes -= length)
        if (!is_stripped(utf8_decode(message.content, &length))) break;
    return message;
}

static struct chat_message trim_end(struct chat_message message)
{
    while (message.content_bytes) {
        size_t length, before = utf8_before(message.content, message.content_bytes);
        if (!is_stripped(utf8_decode(message.content + before, &length))) break;
        message.content_bytes = before;
    }
    return message;
}

static struct chat_message trim_both(struct chat_message message)
{
    return trim_end(trim_start(message));
}

// ---- The families.

static void emit_llama3_turn(struct rendering *r, struct chat_message message, const char *preamble)
{
    emit(r, "<|start_header_id|>");
    emit(r, message.role);
    emit(r, "<|end_header_id|>\n\n");
    if (preamble) emit(r, preamble);
    emit_content(r, r->chat->trim ? trim_both(message) : message, is_role(message, "system"));
    emit(r, "<|eot_id|>");
}

static void render_llama3(struct rendering *r, const struct chat_message *messages, int n)
{
    const char *preamble = r->chat->preamble;
    bool own_system = is_role(messages[0], "system");
    r->pin = true;
    emit(r, r->chat->bos);
    if (preamble && !own_system) emit_llama3_turn(r, (struct chat_message){"system", "", 0}, preamble);
    for (int i = 0; i < n; i++) {
        r->pin = is_role(messages[i], "system") || i == n - 1;
        emit_llama3_turn(r, messages[i], i == 0 && own_system ? preamble : NULL);
    }
    emit(r, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// Removes the model's thinking from an earlier answer.
static struct chat_message drop_thinking(struct chat_message message)
{
    static const char mark[] = "</think>";
    const char *end = message.content + message.content_bytes, *at;
    bool found = false;
    while ((at = memmem(message.content, (size_t)(end - message.content), mark, sizeof mark - 1))) {
        message.content = at + sizeof mark - 1;
        found = true;
    }
    while (found && message.content < end && *message.content == '\n')
        message.content++;
    message.content_bytes = (size_t)(end - message.content);
    return message;
}

static void emit_chatml_turn(struct rendering *r, struct chat_message message)
{
    emit(r, "<|im_start|>");
    emit(r, message.role);
    emit(r, "\n");
    emit_content(r, r->chat->trim ? trim_both(message) : message, is_role(message, "system"));
    emit(r, "<|im_end|>\n");
}

static void render_chatml(struct rendering *r, const struct chat_message *messages, int n)
{
    const char *system = r->chat->default_system;
    r->pin = true;
    emit(r, r->chat->bos);
    if (system && !is_role(messages[0], "system"))
        emit_chatml_turn(r, (struct chat_message){"system", system, strlen(system)});
    for (int i = 0; i < n; i++) {
        bool thinks = r->chat->drops_thinking && is_role(messages[i], "assistant");
        r->pin = is_role(messages[i], "system") || i == n - 1;
        emit_chatml_turn(r, thinks ? drop_thinking(messages[i]) : messages[i]);
    }
    emit(r, "<|im_start|>assistant\n");
}

static void render_llama2(struct rendering *r, const struct chat_message *messages, int n)
{
    bool system = is_role(messages[0], "system");
    for (int i = system; i < n; i++) {
        r->pin = i == n - 1 || (system && i == 1);
        if (is_role(messages[i], "assistant")) {
            emit(r, " ");
            emit_content(r, trim_both(messages[i]), false);
            emit(r, " ");
            emit(r, r->chat->eos);
            continue;
        }
        emit(r, r->chat->bos);
        emit(r, "[INST] ");
        if (system && i == 1) {
            emit(r, "<<SYS>>\n");
            emit_content(r, messages[0], true);
            emit(r, "\n<</SYS>>\n\n");
            r->pin = i == n - 1;
            // The template strips system and user text as a whole, so the start of the user text stays.
            emit_content(r, trim_end(messages[i]), false);
        } else {
            emit_content(r, trim_both(messages[i]), false);
        }
        emit(r, " [/INST]");
    }
}

static void render_mistral(struct rendering *r, const struct chat_message *messages, int n)
{
    const struct chat_template *chat = r->chat;
    bool system = is_role(messages[0], "system");
    int system_turn = !system ? -1 : chat->system_place == CHAT_SYSTEM_LAST_USER ? n - 1 : 1;
    r->pin = true;
    emit(r, chat->bos);
    for (int i = system; i < n; i++) {
        r->pin = i == n - 1 || i == system_turn;
        if (is_role(messages[i], "assistant")) {
            emit(r, chat->assistant_before);
            emit_content(r, chat->trim ? trim_both(messages[i]) : messages[i], false);
            emit(r, chat->assistant_after);
            continue;
        }
        emit(r, chat->user_before);
        if (i == system_turn) {
            emit_content(r, messages[0], true);
            emit(r, "\n\n");
        }
        r->pin = i == n - 1;
        emit_content(r, messages[i], false);
        emit(r, chat->user_after);
    }
}

// ---- Checks.

static enum status check_message(struct chat_message message, int i)
{
    size_t bad;
    if (is_role(message, "tool"))
        return status_fail(STATUS_UNSUPPORTED,
                           "messages[%d]: role \"tool\" is not supported: must be system, user or assistant", i);
    if (!is_role(message, "system") && !is_role(message, "user") && !is_role(message, "assistant")) {
        size_t n = strlen(message.role); // show it only if short and valid UTF-8: the client sees this sentence
        bool shown = n <= 32 && utf8_valid(message.role, n, NULL);
        return status_fail(STATUS_INVALID, "messages[%d]: role %s%s%s: must be system, user or assistant", i,
                           shown ? "\"" : "", shown ? message.role : "not known", shown ? "\"" : "");
    }
    if (!utf8_valid(message.content, message.content_bytes, &bad))
        return status_fail(STATUS_INVALID, "messages[%d]: content is not UTF-8: byte %zu is wrong", i, bad);
    return STATUS_OK;
}

static enum status check_order(const struct chat_template *chat, const struct chat_message *messages, int n)
{
    bool alternates = chat->family == CHAT_LLAMA2 || chat->family == CHAT_MISTRAL;
    bool system = is_role(messages[0], "system");
    if (system && chat->family == CHAT_MISTRAL && chat->system_place == CHAT_SYSTEM_NONE)
        return status_fail(STATUS_INVALID, "messages[0]: this model's chat template takes no system message: put it "
                                           "into the first user message");
    for (int i = system; alternates && i < n; i++) {
        const char *due = (i - system) % 2 ? "assistant" : "user";
        if (!is_role(messages[i], due))
            return status_fail(STATUS_INVALID,
                               "messages[%d]: role \"%s\": must be %s (user and assistant take turns, "
                               "a system message may only come first)",
                               i, messages[i].role, due);
    }
    if (!is_role(messages[n - 1], "user"))
        return status_fail(STATUS_INVALID, "messages[%d]: role \"%s\": the last message must be a user's", n - 1,
                           messages[n - 1].role);
    if (trim_both(messages[n - 1]).content_bytes == 0)
        return status_fail(STATUS_INVALID, "messages[%d]: the last message must not be empty", n - 1);
    return STATUS_OK;
}

// ---- Public.

// The text of token i extends from starts[i] to the start of the next token.
static size_t token_end(const struct rendering *r, const size_t *starts, const struct chat_prompt *prompt, int i)
{
    size_t end = i + 1 < prompt->n_ids ? starts[i + 1] : r->text.n;
    return end == starts[i] ? end + 1 : end; // several tokens share one character
}

// The tokens that contain a byte of the last user turn; {0, -1}: none.
static struct token_range last_turn_tokens(const struct rendering *r, const size_t *starts,
                                           const struct chat_prompt *prompt)
{
    struct token_range turn = {0, -1};
    for (int i = 0; i < prompt->n_ids && starts[i] < r->last_turn.end; i++) {
        if (token_end(r, starts, prompt, i) <= r->last_turn.start) continue;
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

// Collects the tokens that contain a pinned byte and the pinned tokens of the last user turn.
static void find_pinned_tokens(const struct rendering *r, const size_t *starts, int turn_tokens,
                               struct chat_prompt *prompt)
{
    struct token_range *pinned = mem_alloc_array((size_t)r->n_pinned + 2, sizeof *pinned);
    struct token_range turn = last_turn_tokens(r, starts, prompt);
    int n = 0;
    for (int i = 0, range = 0; i < prompt->n_ids; i++) {
        while (range < r->n_pinned && r->pinned[range].end <= starts[i])
            range++;
        bool text_is_pinned = range < r->n_pinned && r->pinned[range].start < token_end(r, starts, prompt, i);
        if (!text_is_pinned && !turn_pins_token(turn, turn_tokens, i)) continue;
        if (n && pinned[n - 1].last == i - 1)
            pinned[n - 1].last++;
        else
            pinned[n++] = (struct token_range){i, i};
    }
    prompt->pinned = pinned;
    prompt->n_pinned = n;
}

enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_message *messages, int n, int max_ids, int turn_tokens,
                        struct chat_prompt *prompt_p)
{
    static void (*const render[])(struct rendering *, const struct chat_message *,
                                  int) = {[CHAT_LLAMA3] = render_llama3,
                                          [CHAT_LLAMA2] = render_llama2,
                                          [CHAT_CHATML] = render_chatml,
                                          [CHAT_MISTRAL] = render_mistral};
    if (n < 1) return status_fail(STATUS_INVALID, "messages: there must be at least one");
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        TRY(check_message(messages[i], i));
    TRY(check_order(chat, messages, n));

    struct rendering r = {.chat = chat};
    struct chat_prompt prompt = {0};
    size_t *starts;
    render[chat->family](&r, messages, n);
    status = tokenizer_encode_untrusted(tokenizer, r.text.data, r.text.n, TOKENIZER_PARSE_SPECIAL, r.contents,
                                        r.n_contents, max_ids, &prompt.ids, &starts, &prompt.n_ids);
    if (status == STATUS_OK) {
        find_pinned_tokens(&r, starts, turn_tokens, &prompt);
        free(starts);
        prompt.text_bytes = r.text.n;
        bytes_add(&r.text, "", 1);
        prompt.text = r.text.data;
        *prompt_p = prompt;
    } else {
        bytes_free(&r.text);
    }
    free(r.contents);
    free(r.pinned);
    return status;
}

void chat_prompt_fini(struct chat_prompt *prompt)
{
    free(prompt->text);
    free(prompt->ids);
    free(prompt->pinned);
    *prompt = (struct chat_prompt){0};
}
