// SPDX-License-Identifier: Apache-2.0
// Tables with one line per sampling or prefill field that is a number or a switch. They generate the members and
// defaults of struct sampling and struct prefill (generation.h), the range checks (generation.c), the mapping to and
// from both protocols (generation_wire.c), and the flags and JSON keys of the command line (cli/request.c). To add a
// field, add its line here and a member of the same name to the .proto files.
//
//     FIELD(type, name, flag, default, FROM | OVER, min, max, unit, help)
//
// type  INT       int; uint32 or int32 in the protocols
//       OPTIONAL  INT that may be absent: its default lies outside its range and means "not given"
//       INT_OR_AUTO  INT or the word "auto", which is -1 in the struct and in the cluster protocol; clients send "auto"
//                 as a bool of the same oneof
//       UINT64    uint64_t, every value is valid: no range
//       REAL      double
//       ROUTER_REAL  REAL whose default is an option of the router
//       OPTIONAL_REAL  REAL that may be absent, as OPTIONAL
//       BOOL      bool: no range
// FROM  the range includes its minimum; OVER: it does not. The maximum is always included.
// unit  shown in --help, or NULL
#pragma once

#include <limits.h>

// clang-format off
#define SAMPLING_FIELDS(FIELD)                                                                                         \
    FIELD(OPTIONAL, max_tokens, "max-tokens", 0, FROM, 1, INT_MAX, "tokens",                                           \
          "maximum number of tokens to generate; default 256, or the rest of the context if that is less")             \
    FIELD(INT, min_tokens, "min-tokens", 0, FROM, 0, INT_MAX, "tokens",                                                \
          "minimum number of tokens to generate before EOS or a stop condition ends the text")                         \
    FIELD(REAL, temperature, "temperature", 0, FROM, 0, 100, NULL, "randomness of the sampling; 0 is greedy")          \
    FIELD(INT, top_k, "top-k", 0, FROM, 0, INT_MAX, "tokens", "sample from the k most likely tokens; 0 is all")        \
    FIELD(REAL, top_p, "top-p", 1, OVER, 0, 1, NULL,                                                                   \
          "sample from the most likely tokens whose cumulative probability reaches p; over 0, 1 is all")               \
    FIELD(REAL, min_p, "min-p", 0, FROM, 0, 1, NULL,                                                                   \
          "minimum probability of a token, relative to the most likely token; 0 is off")                               \
    FIELD(UINT64, seed, "seed", 0, FROM, 0, 0, NULL,                                                                   \
          "random seed; the same seed, model and kept tokens give the same text; default random")                      \
    FIELD(REAL, repetition_penalty, "repetition-penalty", 1, OVER, 0, 100, NULL,                                       \
          "penalize tokens that are in the prompt or the output (arXiv 1909.05858); over 1 penalizes, 1 is off")       \
    FIELD(REAL, presence_penalty, "presence-penalty", 0, FROM, -2, 2, NULL,                                            \
          "penalize tokens that are in the output; below 0 encourages them")                                           \
    FIELD(REAL, frequency_penalty, "frequency-penalty", 0, FROM, -2, 2, NULL,                                          \
          "penalize tokens by their number of occurrences in the output; below 0 encourages them")                     \
    FIELD(BOOL, ignore_eos, "ignore-eos", false, FROM, 0, 1, NULL, "continue generating after EOS")                    \
    FIELD(OPTIONAL, logprobs, "logprobs", -1, FROM, 0, LOGPROBS_MAX, "tokens",                                         \
          "return the log probability of each token and of this many most likely tokens")                              \
    FIELD(OPTIONAL, prompt_logprobs, "prompt-logprobs", -1, FROM, 0, LOGPROBS_MAX, "tokens",                           \
          "return the log probability of each prompt token except the first and of this many most likely tokens")

#define PREFILL_FIELDS(FIELD)                                                                                          \
    FIELD(ROUTER_REAL, keep_rate, "keep-rate", 0.3, OVER, 0, 1, NULL,                                                  \
          "share of the prompt's tokens to keep, above 0; default: as the router")                                \
    FIELD(OPTIONAL_REAL, quality, "quality", 0, OVER, 0, 1, NULL,                                                      \
          "share of the answers that are right with the whole prompt and must stay right, above 0; the speculator "  \
          "chooses the keep rate; unused with --keep-rate; default: as the router")                                    \
    FIELD(INT, look_ahead, "look-ahead", 8, FROM, 1, LOOK_AHEAD_MAX, "tokens",                                         \
          "look-ahead tokens that the speculator decodes to score the prompt")                                         \
    FIELD(INT_OR_AUTO, chunk_tokens, "chunk-tokens", CHUNK_TOKENS_AUTO, FROM, 0, 4096, "tokens",                       \
          "prompt tokens that are kept or pruned together: auto is sentences and lines, or 32 with --paper-exact; a "  \
          "number is chunks of that many tokens; 0 is single tokens")                                                  \
    FIELD(INT, pool_window, "pool-window", 13, FROM, 1, 1023, "tokens",                                                \
          "odd width of the smoothing window along the prompt; 1 is no smoothing")                                     \
    FIELD(BOOL, paper_exact, "paper-exact", false, FROM, 0, 1, NULL,                                                   \
          "only the paper's selection: no token is forced, pinned or added")                                           \
    FIELD(BOOL, conversation, "conversation", true, FROM, 0, 1, NULL,                                                  \
          "in a chat with answers, keep the rows of earlier turns, and add pruned tokens that the new turn needs; "    \
          "unused with --paper-exact")                                                                                 \
    FIELD(INT, shared_tokens, "shared-tokens", 0, FROM, 0, INT_MAX, "tokens",                                          \
          "number of first prompt tokens that other prompts share, such as a document: they are selected without "     \
          "the text after them, so that caches hold their rows; 0 is none; unused with --paper-exact")
// clang-format on
