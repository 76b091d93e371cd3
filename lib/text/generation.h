// SPDX-License-Identifier: Apache-2.0
// Sampling and speculative-prefill parameters of a request with their defaults and limits, in one place for the command
// line, the router, the speculator and the worker. Plain data; any thread.
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

// A finished turn of a conversation. Tokens [0, end) of the prompt are answered by tokens [end, answer_end), which
// include the template's text after the answer.
struct prompt_turn {
    int end, answer_end;
    struct token_range *pinned; // [n_pinned] ranges of tokens [0, end); owned
    int n_pinned;
};
// Returns true if the turn is a shared beginning (docs/glossary.md), which is stored as a first turn with an empty
// answer.
static inline bool prompt_turn_is_shared(const struct prompt_turn *turn)
{
    return turn->end == turn->answer_end;
}
// Returns how many pruned tokens of a shared beginning of n tokens the next turn may recall, in addition to its keep
// budget.
static inline int prompt_shared_recall(int n)
{
    return n / 3;
}
enum { PROMPT_TURNS_MAX = 128 }; // a conversation with more turns is scored as one prompt
struct prompt_turn *prompt_turns_copy(const struct prompt_turn *turns, int n);
void prompt_turns_free(struct prompt_turn *turns, int n); // NULL is fine

enum { LOGPROBS_MAX = 20, STOP_STRINGS_MAX = 16, STOP_STRING_BYTES_MAX = 1024, STOP_IDS_MAX = 64, LOOK_AHEAD_MAX = 64 };

// Values of chunk_tokens for selection by spans and for the paper's chunks.
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

// The members of generation_fields.h, then the remaining members.
struct sampling {
    SAMPLING_FIELDS(GENERATION_MEMBER)
    // The client asked for 0 tokens: max_tokens is 1, since the pass over the prompt yields a token, which is not part
    // of the answer.
    bool no_output;
    int32_t stop_ids[STOP_IDS_MAX];
    int n_stop_ids;
    // Owned by the owner of the struct, borrowed by copies of the struct:
    struct logit_bias logit_bias;
    struct grammar_spec grammar;
};

// Decides if a speculator chooses the prompt tokens that the main model prefills.
enum prefill_mode {
    PREFILL_AUTO,     // if this is predicted to cut TTFT
    PREFILL_ON,       // if a speculator can score the prompt
    PREFILL_OFF,      // never
    PREFILL_REQUIRED, // as PREFILL_ON, but a prompt that no speculator can score is refused
};

// Decides if the look-ahead tokens of the speculator are draft tokens of the answer, which the worker group verifies.
enum draft_mode { DRAFTS_AUTO, DRAFTS_OFF };

struct prefill {
    enum prefill_mode mode;
    enum draft_mode drafts;
    double min_keep_rate; // least keep rate that a speculator may choose for a quality; 0: any (prefill_limit.h)
    PREFILL_FIELDS(GENERATION_MEMBER)
};

// A line of generation_fields.h as data.
struct generation_field {
    const char *name; // name in JSON and in the protocols
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
    size_t offset; // offset in struct sampling or struct prefill
    double default_value, min, max;
    bool over_min; // the range does not include min
};
extern const struct generation_field sampling_fields[], prefill_fields[]; // each ends with a row whose name is NULL

// Checks a number that was given explicitly, also for a field that may be absent or auto. Returns STATUS_INVALID with
// the name and the range.
enum status generation_field_check(const struct generation_field *field, double value);

// Returns the member of `object`, a struct sampling or struct prefill, as a number.
double generation_field_number(const struct generation_field *field, const void *object);

// Returns true if output token `index` needs more than the logits of its row: log-probabilities, penalties, a logit
// bias, a grammar, or end tokens masked by min_tokens. The host then samples the token, in a few passes over the
// vocabulary.
bool sampling_needs_host(const struct sampling *s, int index);

// Returns how many tokens the answer may have. The context must have room for the prompt and for these tokens.
int sampling_output_max(const struct sampling *s);

void sampling_defaults(struct sampling *s);
void prefill_defaults(struct prefill *p);

// Return STATUS_INVALID with an error message that names the field and its range.
enum status sampling_check(const struct sampling *s, int vocab_size);
enum status prefill_check(const struct prefill *p);

// The words in which an API says that a prompt exceeds the context. Client libraries search error messages for them,
// and then shorten the conversation or choose another model.
enum context_words { CONTEXT_WORDS_OPENAI, CONTEXT_WORDS_ANTHROPIC };

// Decides what happens if the context cannot hold a request.
struct context_policy {
    enum context_words words;
    bool reduces; // max_tokens is reduced to what fits, but not below min_tokens; false: the request is refused
};

// Returns OUT_OF_RANGE with the error message for a prompt that leaves no room for one token in a context of `context`
// tokens. If `counted` is false, the prompt has more than prompt_tokens. `note` follows the size of the context.
enum status context_refuse(enum context_words words, int prompt_tokens, bool counted, int context, const char *note);

// Completes max_tokens for a prompt of `prompt_tokens`: a missing value becomes `default_tokens` or the rest of the
// context, whichever is less. Returns OUT_OF_RANGE if the context has no room for one token after the prompt (with
// no_output: for the prompt), or no room for max_tokens and the policy does not reduce it. The error message calls
// max_tokens `name`.
enum { MAX_TOKENS_DEFAULT = 256 };
enum status sampling_resolve(struct sampling *s, int prompt_tokens, const struct model_config *config,
                             int default_tokens, const char *name, const struct context_policy *policy);

// Reason for the keep rate of a scored prompt.
enum rate_reason {
    RATE_FIXED,        // the request's keep_rate
    RATE_QUALITY,      // the speculator's calibration chose it for the request's quality
    RATE_UNSURE,       // no lower rate is likely enough to reach the quality: all tokens are kept
    RATE_UNCALIBRATED, // the calibration does not cover the request: all tokens are kept
    RATE_REASON_COUNT
};

#define PREFILL_MODES "auto|on|off|required" // choices of a command line
const char *prefill_mode_name(enum prefill_mode mode);
bool prefill_mode_parse(const char *name, enum prefill_mode *mode_p); // false: not the name of a mode
#define DRAFT_MODES "auto|off"
bool draft_mode_parse(const char *name, enum draft_mode *mode_p);

// Returns the output estimate: how many KV blocks the output is expected to use. `max_blocks` is how many it may still
// need. The estimate is a quarter of max_blocks, since most answers end long before max_tokens. A low estimate costs
// preemptions, not correctness.
int64_t output_blocks_expected(int64_t max_blocks);

// Time limit of a speculator's look-ahead passes, as a share of the time of its passes with prompt rows. Used by the
// speculator and by the router's estimates.
#define LOOK_AHEAD_SHARE 0.125
// Unused look-ahead time accumulates, up to the share of this many passes. So prompts that were read in different
// passes can share their look-ahead passes.
#define LOOK_AHEAD_SAVED_PASSES 2.0

// Returns the chunk size of a request's selection. With paper_exact, CHUNK_TOKENS_AUTO becomes the paper's chunk size.
int prefill_chunk_tokens(const struct prefill *p);

// Returns the keep budget: how many of a prompt's n_chunks to keep, at least one.
int prefill_keep_budget(int n_chunks, double keep_rate);

// Returns the tail window of a prompt: how many last tokens are kept beyond the budget, at most a quarter of the
// prompt.
int prefill_tail_tokens(int tail_tokens, int prompt_tokens);
