// SPDX-License-Identifier: Apache-2.0
// Compresses a prompt or the messages of a chat: drops the parts of their texts that a speculator finds least
// important. Every message stays in its place with all members but its text.
//
//   compression_create()    finds the texts in the JSON of the client, and divides them into units (lib/text/cut.h)
//   compression_tokenise()  joins the texts by blank lines and makes the tokens that a speculator scores
//   compression_apply()     chooses the units that are kept, and replaces each text by what remains of it
//
// These texts are kept whole: system messages (unless cut_system), the last message of the user, and the calls of
// tools. A prompt keeps its end: the last unit, and more of the last paragraph. Every text keeps at least its best
// unit, because many engines refuse empty messages. Images and other parts that are not text are not read.
//
// Threads: any thread, one at a time.
#pragma once

#include <jansson.h>

#include "lib/text/cut.h"
#include "router/front/request/intake.h"

// The way in which a text was divided, or the reason why it is kept whole.
enum compress_rule { COMPRESS_PROSE, COMPRESS_CODE, COMPRESS_JSON, COMPRESS_SYSTEM, COMPRESS_LAST_USER, COMPRESS_CALL };
const char *compress_rule_name(enum compress_rule rule);

// A text of the prompt or of a message.
struct compress_text {
    json_t *value;     // the JSON string; borrowed from compression.input
    int message, part; // index of the message, and of the part of its content; part -1: the content is one string
    enum compress_rule rule;
    struct cut_units units;
    bool *keep;               // [units.n]
    struct text_range joined; // its place in the joined texts
    struct text_range *kept;  // [n_kept] bytes of the text that are kept
    int n_kept;
};

// The units that are kept follow from the keep rate R, of N tokens: the best ones that fit R x N tokens in all, or with
// `beyond` R x N tokens in addition to what is always kept.
struct compress_goal {
    double keep_rate;
    bool beyond;
};

struct compression {
    json_t *input; // list of messages, or a string; owned
    struct compress_text *texts;
    int n_texts, capacity;
    size_t *starts; // [tokens_before] byte of the joined texts where each token begins
    int tokens_before, tokens_after;
    // How the request ended, for the answer:
    double keep_rate, score_ms;
    const char *decided_by; // "keep_rate", "quality", "token_budget" or a skip reason
    bool by_budget;         // the client gave a token budget
    char limit[REQUEST_LIMIT_ROOM];
};

// Takes ownership of `input`, also on failure. Returns INVALID for a message that is malformed or has an unknown role.
enum status compression_create(json_t *input, bool cut_system, struct compression **c_p);
void compression_free(struct compression *c); // NULL is allowed

// Returns the memory that the compression takes while its request waits.
size_t compression_bytes(const struct compression *c);

// Tokenises the joined texts. `*tokens_p` [c->tokens_before] is owned by the caller.
enum status compression_tokenise(const struct front *front, struct compression *c, int32_t **tokens_p);

// Chooses the units by the importance [tokens_before] of the tokens. NULL keeps everything. Sets tokens_after.
void compression_apply(const struct front *front, struct compression *c, const float *importance,
                       const struct compress_goal *goal);
