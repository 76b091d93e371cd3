// SPDX-License-Identifier: Apache-2.0
// Chat templates: messages to the prompt tokens on which the model was trained.
//
// Jinja is not executed. Four template families are recognised by their markers, and their variations (spacing, default
// system prompt, dates) are read from the source: "llama3" (<|start_header_id|>), "llama2" ([INST] with <<SYS>>),
// "chatml" (<|im_start|>: Qwen and others), "mistral" ([INST] without <<SYS>>: v1 to v3, Tekken). The prompt equals
// that of Hugging Face's apply_chat_template(add_generation_prompt=True) without tools, with one difference on purpose:
// special tokens are recognised only in the template's text, so that no message can forge a turn. Dates are the
// template's own default ("26 Jul 2024"), never the clock: a prompt must not change overnight.
//
// Threads: a chat_template is immutable; any thread may render with it.
#pragma once

#include "model/generation.h"
#include "model/tokenizer.h"

struct chat_template;

struct chat_message {
    const char *role;    // "system", "user" or "assistant"
    const char *content; // UTF-8, [content_bytes]
    size_t content_bytes;
};

// The prompt of a conversation. Owned by the caller: chat_prompt_fini().
struct chat_prompt {
    char *text; // with special tokens spelled out; NUL-terminated
    size_t text_bytes;
    int32_t *ids; // [n_ids]; includes BOS if the template adds it: add nothing
    int n_ids;
    struct token_range *pinned; // [n_pinned] ascending, disjoint: tokens that speculative prefill must keep: the system
    int n_pinned;               // prompt, the last user turn as chat_render() says, the generation prompt
};

// Recognises the template of this tokenizer. UNSUPPORTED: it has none, or one of an unknown family; the sentence names
// the known ones. DATA: it needs an eos_token and tokenizer_config.json names none.
enum status chat_template_detect(const struct tokenizer *tokenizer, struct chat_template **template_p);
void chat_template_free(struct chat_template *chat); // NULL is fine

// "llama3", "llama2", "chatml" or "mistral".
const char *chat_template_name(const struct chat_template *chat);

// Renders messages [n] to a prompt that ends where the assistant's answer starts. Llama 2 and Mistral require an
// optional system message, then user and assistant alternating. All require that the last message is a user's and not
// empty. INVALID names the message that breaks a rule. UNSUPPORTED: role "tool". OUT_OF_RANGE as soon as the prompt has
// more than `max_ids` tokens.
//
// The last user turn is pinned if its content has at most `turn_tokens` tokens, else the first and last turn_tokens /
// 2: instructions usually stand at the start or the end of a turn.
enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_message *messages, int n, int max_ids, int turn_tokens,
                        struct chat_prompt *prompt_p);
void chat_prompt_fini(struct chat_prompt *prompt);
