// SPDX-License-Identifier: Apache-2.0
// One request as the command line sees it: the flags that every command shares, the same fields from a JSON row, and
// the way onto the wire. One thread.
#pragma once

#include <jansson.h>

#include "base/options.h"
#include "model/generation.h"
#include "net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"

struct request_message {
    char *role, *content;
};

struct request_spec {
    char *id; // owned, like all pointers here; NULL: the server makes one
    char *model_name;
    char *text; // exactly one of text, token_ids, messages is asked for
    size_t text_bytes;
    int32_t *token_ids;
    int n_token_ids;
    struct request_message *messages;
    int n_messages;
    struct sampling sampling; // max_tokens 0: the server's default
    bool seed_given;
    char **stop;
    int n_stop;
    struct prefill prefill;
    bool return_kept;
    int32_t priority;
    char *tenant;
    int64_t ttft_deadline_ms;
};

// Where the flags of REQUEST_OPTION_ROWS land.
struct request_flags {
    struct sampling sampling; // filled by request_spec_from_flags
    int64_t max_tokens, min_tokens, top_k, seed, logprobs, look_ahead, chunk_tokens, pool_window, priority,
        ttft_deadline_ms;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, keep_rate;
    struct option_list stop, stop_token_ids;
    bool ignore_eos, return_kept, paper_exact;
    char *prefill, *model_name, *tenant;
};
extern struct request_flags request_flags;

// clang-format off
#define REQUEST_OPTION_ROWS                                                                                             \
    {.name = "-Sampling"},                                                                                              \
    {.name = "max-tokens", .type = OPTION_INT, .value = &request_flags.max_tokens, .unit = "tokens",                   \
     .help = "most tokens to generate; default 256, or the rest of the context if that is less"},                       \
    {.name = "min-tokens", .type = OPTION_INT, .value = &request_flags.min_tokens, .default_text = "0", .unit = "tokens", \
     .help = "no end before this many"},                                                                                \
    {.name = "temperature", .type = OPTION_REAL, .value = &request_flags.temperature, .default_text = "0",              \
     .help = "0 is greedy, up to 100"},                                                                                 \
    {.name = "top-k", .type = OPTION_INT, .value = &request_flags.top_k, .default_text = "0", .unit = "tokens",         \
     .help = "sample among the k likeliest; 0 is off"},                                                                 \
    {.name = "top-p", .type = OPTION_REAL, .value = &request_flags.top_p, .default_text = "1",                          \
     .help = "sample among the likeliest that together reach p; over 0, at most 1"},                                    \
    {.name = "min-p", .type = OPTION_REAL, .value = &request_flags.min_p, .default_text = "0",                          \
     .help = "drop tokens below this share of the likeliest; 0 to 1"},                                                  \
    {.name = "seed", .type = OPTION_INT, .value = &request_flags.seed, .help = "same seed, same text; default random"}, \
    {.name = "repetition-penalty", .type = OPTION_REAL, .value = &request_flags.repetition_penalty,                     \
     .default_text = "1", .help = "over 1 discourages tokens of prompt and output"},                                    \
    {.name = "presence-penalty", .type = OPTION_REAL, .value = &request_flags.presence_penalty, .default_text = "0",    \
     .help = "-2 to 2"},                                                                                                \
    {.name = "frequency-penalty", .type = OPTION_REAL, .value = &request_flags.frequency_penalty, .default_text = "0",  \
     .help = "-2 to 2"},                                                                                                \
    {.name = "stop", .type = OPTION_LIST, .value = &request_flags.stop, .help = "end the text before this string"},     \
    {.name = "stop-token-id", .type = OPTION_LIST, .value = &request_flags.stop_token_ids,                              \
     .help = "end the text before this token"},                                                                         \
    {.name = "ignore-eos", .type = OPTION_BOOL, .value = &request_flags.ignore_eos, .help = "go on past end of text"},  \
    {.name = "logprobs", .type = OPTION_INT, .value = &request_flags.logprobs, .unit = "tokens",                        \
     .help = "log-probability of each token and of this many of the likeliest, 0 to 20"},                               \
    {.name = "-Speculative prefill"},                                                                                   \
    {.name = "prefill", .type = OPTION_CHOICE, .value = &request_flags.prefill, .default_text = "auto",                 \
     .choices = "auto|on|off", .help = "drop prompt tokens that do not matter"},                                        \
    {.name = "keep-rate", .type = OPTION_REAL, .value = &request_flags.keep_rate, .default_text = "0.3",                \
     .help = "share of the prompt to keep; over 0, at most 1"},                                                         \
    {.name = "look-ahead", .type = OPTION_INT, .value = &request_flags.look_ahead, .default_text = "8",                 \
     .unit = "steps", .help = "tokens that look back at the prompt, 1 to 64"},                                          \
    {.name = "chunk-tokens", .type = OPTION_INT, .value = &request_flags.chunk_tokens, .default_text = "32",            \
     .unit = "tokens", .help = "kept or dropped together; 0 is single tokens"},                                         \
    {.name = "pool-window", .type = OPTION_INT, .value = &request_flags.pool_window, .default_text = "13",              \
     .unit = "tokens", .help = "odd width of the average along the prompt; 1 is none"},                                 \
    {.name = "paper-exact", .type = OPTION_BOOL, .value = &request_flags.paper_exact,                                   \
     .help = "only the paper's selection: nothing forced, pinned or added"},                                            \
    {.name = "return-kept", .type = OPTION_BOOL, .value = &request_flags.return_kept,                                   \
     .help = "tell which tokens were kept"},                                                                            \
    {.name = "-Request"},                                                                                               \
    {.name = "served-model-name", .type = OPTION_STRING, .value = &request_flags.model_name,                                   \
     .help = "served model asked for; default whichever is served"},                                                    \
    {.name = "priority", .type = OPTION_INT, .value = &request_flags.priority, .default_text = "0", .min = -1000,       \
     .max = 1000, .help = "larger goes first"},                                                                         \
    {.name = "tenant", .type = OPTION_STRING, .value = &request_flags.tenant, .help = "whose request it is"},           \
    {.name = "ttft-deadline-ms", .type = OPTION_INT, .value = &request_flags.ttft_deadline_ms, .default_text = "0",     \
     .max = 86400000, .unit = "ms", .help = "give up when no token came by then; 0 is never"}
// clang-format on

#define SERVER_DEFAULT "127.0.0.1:50051"

// Copies the flags into a spec without a prompt, checked; `table` is the one that was parsed.
enum status request_spec_from_flags(const struct option *table, struct request_spec *spec);
// Overrides a spec with a JSON object's fields (batch rows): id, prompt | messages | token_ids, sampling and prefill
// fields by their underscored names. Keys it does not know are left alone; the first of them goes to *unknown_p
// (borrowed from the object). The result is checked.
enum status request_spec_from_json(struct request_spec *spec, json_t *row, const char **unknown_p);
void request_spec_copy(const struct request_spec *from, struct request_spec *to);
void request_spec_free(struct request_spec *spec);

// The message as bytes, for the wire.
struct rpc_bytes request_spec_pack(const struct request_spec *spec);
// PrefillOptions alone (Score), to be freed with request_prefill_free.
Forepack__V1__PrefillOptions *request_prefill_message(const struct request_spec *spec);

// A prompt from --prompt TEXT, --prompt-file F or "-" (standard input), exactly one of them.
enum status request_read_prompt(const char *prompt, const char *prompt_file, char *const *rest, int n_rest,
                                struct request_spec *spec);
// Whole file or standard input ("-"), at most 64 MiB.
enum status read_whole_file(const char *path, char **data_p, size_t *size_p);

// 0 done, 1 failed, 2 wrong usage.
int exit_code(enum status status);
// Prints the sentence of a failure on standard error and returns its exit code.
int report_failure(enum status status);
