// SPDX-License-Identifier: Apache-2.0
// The sampling and speculative-prefill parameters of a request, their defaults and their limits, in one place for the
// command line, the router, the speculator and the worker. Plain data; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/config.h"
#include "lib/text/generation_fields.h"
#include "lib/text/grammar_spec.h"
#include "lib/text/logit_bias.h"

// A range of prompt tokens by index, both ends included.
struct token_range {
    int32_t first, last;
};

// A finished turn of a conversation: the answer to tokens [0, end) of the prompt is [end, answer_end), with the frame
// behind it.
struct prompt_turn {
    int end, answer_end;
    struct token_range *pinned; // [n_pinned] of tokens [0, end); owned
    int n_pinned;
};
// The beginning of a prompt that others share is a first turn with an empty answer.
static inline bool prompt_turn_is_shared(const struct prompt_turn *turn)
{
    return turn->end == turn->answer_end;
}
// The turn behind a shared beginning of n tokens has the keep budget of so many of them besides its own, for tokens of
// the beginning that it needs.
static inline int prompt_shared_recall(int n)
{
    return n / 3;
}
enum { PROMPT_TURNS_MAX = 128 }; // a conversation with more is scored as one prompt
struct prompt_turn *prompt_turns_copy(const struct prompt_turn *turns, int n);
void prompt_turns_free(struct prompt_turn *turns, int n); // NULL is fine

enum { LOGPROBS_MAX = 20, STOP_STRINGS_MAX = 16, STOP_STRING_BYTES_MAX = 1024, STOP_IDS_MAX = 64, LOOK_AHEAD_MAX = 64 };

// chunk_tokens of a selection by spans, and the paper's chunks.
enum { CHUNK_TOKENS_AUTO = -1, CHUNK_TOKENS_PAPER = 32 };

#define GENERATION_INT                       int
#define GENERATION_OPTIONAL                  int
#define GENERATION_INT_OR_AUTO               int
#define GENERATION_UINT64                    uint64_t
#define GENERATION_REAL                      double
#define GENERATION_ROUTER_REAL               double
#define GENERATION_OPTIONAL_REAL             double
#define GENERATION_BOOL                      bool
#define GENERATION_MEMBER(type, member, ...) GENERATION_##type member;

// Members are those of generation_fields.h, then the rest.
struct sampling {
    SAMPLING_FIELDS(GENERATION_MEMBER)
    int32_t stop_ids[STOP_IDS_MAX];
    int n_stop_ids;
    // Owned by whatever owns the struct, borrowed by copies of it:
    struct logit_bias logit_bias;
    struct grammar_spec grammar;
};

// Whether a speculator chooses the prompt tokens that the main model prefills.
enum prefill_mode {
    PREFILL_AUTO,     // when that is predicted to cut TTFT
    PREFILL_ON,       // while a speculator can score the prompt
    PREFILL_OFF,      // never
    PREFILL_REQUIRED, // always; a prompt that no speculator scores is refused
};

// Whether the look-ahead tokens of the speculator are a draft of the answer, which the worker group verifies.
enum draft_mode { DRAFTS_AUTO, DRAFTS_OFF };

struct prefill {
    enum prefill_mode mode;
    enum draft_mode drafts;
    PREFILL_FIELDS(GENERATION_MEMBER)
};

// A line of generation_fields.h as data.
struct generation_field {
    const char *name; // as in JSON and in the protocols
    enum {
        GENERATION_FIELD_INT,
        GENERATION_FIELD_OPTIONAL,
        GENERATION_FIELD_INT_OR_AUTO,
        GENERATION_FIELD_UINT64,
        GENERATION_FIELD_REAL,
        GENERATION_FIELD_ROUTER_REAL = GENERATION_FIELD_REAL,
        GENERATION_FIELD_OPTIONAL_REAL,
        GENERATION_FIELD_BOOL
    } type;
    size_t offset; // in struct sampling or struct prefill
    double default_value, min, max;
    bool over_min; // the range does not include min
};
extern const struct generation_field sampling_fields[], prefill_fields[]; // a row with name NULL ends each

// Checks a number that was given explicitly, so also one of a field that may be absent or auto: STATUS_INVALID with the
// name and the range.
enum status generation_field_check(const struct generation_field *field, double value);

// The member of `object`, a struct sampling or struct prefill.
double generation_field_number(const struct generation_field *field, const void *object);

// Whether output token `index` is sampled from more than its row's logits: log-probabilities, penalties, a logit bias,
// a grammar, or end tokens masked by min_tokens. The host samples such a token, which takes a few passes over the
// vocabulary.
bool sampling_needs_host(const struct sampling *s, int index);

void sampling_defaults(struct sampling *s);
void prefill_defaults(struct prefill *p);

// STATUS_INVALID with a sentence naming the field and its range.
enum status sampling_check(const struct sampling *s, int vocab_size);
enum status prefill_check(const struct prefill *p);

// Settles max_tokens for a prompt of `prompt_tokens`: if not given, `default_tokens` or the rest of the context,
// whichever is less. STATUS_OUT_OF_RANGE when the context has no room for one token after the prompt, or not for
// max_tokens, which the sentence calls `name`.
enum { MAX_TOKENS_DEFAULT = 256 };
enum status sampling_resolve(struct sampling *s, int prompt_tokens, const struct model_config *config,
                             int default_tokens, const char *name);

// What decided the keep rate of a scored prompt.
enum rate_reason {
    RATE_FIXED,        // the request's keep_rate
    RATE_QUALITY,      // the speculator's calibration, for the request's quality
    RATE_UNSURE,       // no lower rate is likely enough to reach the quality: all tokens are kept
    RATE_UNCALIBRATED, // the calibration does not cover the request: all tokens are kept
    RATE_REASON_COUNT
};

#define PREFILL_MODES "auto|on|off|required"                          // choices of a command line
bool prefill_mode_parse(const char *name, enum prefill_mode *mode_p); // false: not the name of a mode
#define DRAFT_MODES "auto|off"
bool draft_mode_parse(const char *name, enum draft_mode *mode_p);

// The output estimate: KV blocks expected to be used of those that the output may still take. A quarter, since most
// answers end long before max_tokens. An estimate that is too low costs preemptions, not correctness.
int64_t output_blocks_expected(int64_t max_blocks);

// Look-ahead passes of a speculator take at most this part of the time of the passes that read other prompts. Used by
// the speculator and by the router's estimates.
#define LOOK_AHEAD_SHARE 0.125
// Their unused share of this many passes is saved: prompts that were read in a row finish their look-ahead at once.
#define LOOK_AHEAD_SAVED_PASSES 2.0

// The chunks that the selection of a request has: `auto` with the paper's selection alone means the paper's chunks.
int prefill_chunk_tokens(const struct prefill *p);

// The keep budget: chunks to keep of a prompt's n_chunks, at least one.
int prefill_keep_budget(int n_chunks, double keep_rate);

// The tail window of a prompt: its last tokens that are kept beyond the budget, at most a quarter of it.
int prefill_tail_tokens(int tail_tokens, int prompt_tokens);
