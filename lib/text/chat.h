// SPDX-License-Identifier: Apache-2.0
// Converts chat messages to prompt tokens in the format on which the model was trained.
//
// A model's template is a Jinja program. jinja/ executes it with the variables of Hugging Face's apply_chat_template():
// messages, tools, documents, add_generation_prompt, the special tokens of tokenizer_config.json (bos_token, ...) and
// the client's own variables (chat_template_kwargs). The prompt equals the prompt of transformers, with one intended
// difference: special tokens are recognised only in text of the template, so that no client can forge a turn.
// strftime_now gives the time of the request, as in transformers: a prompt is rendered once, when the request arrives,
// and replays use its tokens.
//
// Sources of the template, in order of precedence: a file given by the operator, chat_template.jinja, and the member
// `chat_template` of tokenizer_config.json. That member is a string or a list of named templates: "tool_use" renders
// requests with tools and "default" renders all other requests. If chat_template.jinja is the source, the template for
// requests with tools is additional_chat_templates/tool_use.jinja in the same folder.
//
// Clients send contents as a string or as a list of parts ({"type": "text", "text": ...}). chat_template_open() renders
// two short conversations to find out which form the template prints. Lists are joined by newlines for a template that
// prints only strings, and strings become one part for a template that prints only parts. A content that is null or
// absent counts as empty: the turn of an assistant that only calls tools may have none, and many templates fail on it.
// Other members that are null, and empty lists of tool calls, count as absent.
// The `arguments` of tool calls are JSON text in OpenAI's interface and become objects, which templates expect.
//
// Threads: a chat_template is immutable; any thread may render with it.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "lib/text/generation.h"
#include "lib/text/output_parser.h"
#include "lib/text/tokenizer.h"

struct chat_template;

// Conversation that a client sends. The JSON is borrowed and unchanged.
struct chat_conversation {
    const json_t *messages;  // array of objects with at least "role"
    const json_t *tools;     // array, or NULL
    const json_t *documents; // array, or NULL
    const json_t *variables; // object with further variables of the template, or NULL
    bool answered;           // add no generation prompt: the last message is the whole answer
    bool wants_turns;        // find the turns of the prompt, which costs O(turns * tokens)
    const struct tm *now;    // for strftime_now; NULL: the local time
};

// Prompt of a conversation. The caller frees it by chat_prompt_fini().
struct chat_prompt {
    char *text; // the text with special tokens spelled out; NUL-terminated
    size_t text_bytes;
    int32_t *ids; // [n_ids]; includes BOS if the template adds it, so add nothing
    int n_ids;
    struct token_range *pinned; // [n_pinned] ascending, disjoint: tokens that speculative prefill must keep
    int n_pinned;
    struct prompt_turn *turns; // [n_turns] ascending: the answers so far, and the prompts that they answer
    int n_turns;
};

// Opens `template_file`, or the template of the checkpoint in `model_dir` if template_file is NULL. Special tokens come
// from model_dir. With a template_file, model_dir may be NULL: then there are no special tokens. UNSUPPORTED: there is
// no template, or it cannot be parsed (the error message names file and line). NOT_FOUND: template_file does not exist.
// DATA: tokenizer_config.json is broken.
enum status chat_template_open(const char *model_dir, const char *template_file, struct chat_template **template_p);
void chat_template_free(struct chat_template *chat); // NULL is fine

// Returns the name of the template's file, without its folder.
const char *chat_template_name(const struct chat_template *chat);

// Returns the markers of reasoning and tool calls in the model's answers.
struct output_syntax chat_template_syntax(const struct chat_template *chat);

// Renders the text of a conversation as transformers does: message contents are not converted. INVALID: the template
// raised an error or exceeded the limits of struct jinja_limits. The caller frees the text.
enum status chat_render_text(const struct chat_template *chat, const struct chat_conversation *conversation,
                             char **text_p, size_t *text_bytes_p);

// Renders the prompt, up to the place where the answer starts. Returns INVALID if a message is malformed (the error
// message names it) or if the template raised an error (the error message is the template's). Returns OUT_OF_RANGE as
// soon as the prompt has more than `max_ids` tokens.
//
// A turn is a message that is neither a system nor a developer message. Pinned tokens are:
//   - all text of the template before the first turn
//   - the text of system and developer messages and of tools, wherever it stands
//   - all text of the template from the end of the turn before the last user message on, generation prompt included
//   - the last user message if it has at most `turn_tokens` tokens, else its first and last turn_tokens / 2:
//     instructions usually stand at the start or the end of a turn
// Documents are not pinned.
enum status chat_render(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const struct chat_conversation *conversation, int max_ids, int turn_tokens,
                        struct chat_prompt *prompt_p);
void chat_prompt_fini(struct chat_prompt *prompt);
