// SPDX-License-Identifier: Apache-2.0
// A scenario is everything that a run depends on: options, nodes, and a list of timed actions (requests that arrive,
// clients that leave, faults). It is generated from a seed (generate.h), or read from a file.
//
// Text format, one item per line, `#` begins a comment. Options that are not named have the router's defaults, other
// values are 0:
//
//   option max_wait_ms=500 heartbeat_ms=1000
//   node role=1 id=0 up=1 budget=512 kv_blocks=128 ...
//   at 120000 request id=3 tokens=100 max_tokens=10
//   at 130000 crash node=0 for_us=200000
//
// All values are whole numbers. Times of actions count from the start of the run, in microseconds.
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "lib/base/prune_rule.h"
#include "lib/base/status.h"

// noise_seed: seed of delays and of the noise of passes. delay_us, jitter_us: delays of every message. loop_us: time
// from an event at the router to the tick that follows it. samples: the engines sample tokens themselves. weight_of_1:
// weight of tenant 1, in thousandths. salted: tenants share no prefixes. draft_acceptance: in a plan, the chance that a
// draft token is right, in thousandths; -1: a plan without drafts; 0: not a plan. See answers.h. shadow,
// shadow_promise: as struct shadow_options, in thousandths; shadow_measure: enum agreement_measure.
#define SCENARIO_OPTIONS(FIELD)                                                                                        \
    FIELD(noise_seed)                                                                                                  \
    FIELD(vocab)                                                                                                       \
    FIELD(delay_us)                                                                                                    \
    FIELD(jitter_us)                                                                                                   \
    FIELD(loop_us)                                                                                                     \
    FIELD(samples)                                                                                                     \
    FIELD(heartbeat_ms)                                                                                                \
    FIELD(max_queue_requests)                                                                                          \
    FIELD(max_queue_tokens)                                                                                            \
    FIELD(queue_reserve)                                                                                               \
    FIELD(tenant_percent)                                                                                              \
    FIELD(max_wait_ms)                                                                                                 \
    FIELD(score_timeout_ms)                                                                                            \
    FIELD(worker_grace_ms)                                                                                             \
    FIELD(step_timeout_ms)                                                                                             \
    FIELD(stall_ms)                                                                                                    \
    FIELD(eject_ms)                                                                                                    \
    FIELD(min_tokens)                                                                                                  \
    FIELD(tail_tokens)                                                                                                 \
    FIELD(selection_kib)                                                                                               \
    FIELD(bins_ahead)                                                                                                  \
    FIELD(policy)                                                                                                      \
    FIELD(batch_requests)                                                                                              \
    FIELD(weight_of_1)                                                                                                 \
    FIELD(salted)                                                                                                      \
    FIELD(tick_work)                                                                                                   \
    FIELD(unread_max)                                                                                                  \
    FIELD(draft_acceptance)                                                                                            \
    FIELD(shadow)                                                                                                      \
    FIELD(shadow_per_s)                                                                                                \
    FIELD(shadow_measure)                                                                                              \
    FIELD(shadow_promise)

// role: 0 speculator, 1 worker group. id: names the node; two nodes may have the same id. up: runs from the start. Time
// of a pass: fixed_us + rows * row_ns + attention pairs * pair_ps, plus or minus noise_percent, and sample_us for each
// row that the host samples. gap_us: time between two passes. itl_target_ms: as the worker's option; -1: unlimited.
// calibration: number of a speculator's calibration (calibrations.h); 0: none.
#define SCENARIO_NODE(FIELD)                                                                                           \
    FIELD(role)                                                                                                        \
    FIELD(id)                                                                                                          \
    FIELD(up)                                                                                                          \
    FIELD(context)                                                                                                     \
    FIELD(budget)                                                                                                      \
    FIELD(kv_blocks)                                                                                                   \
    FIELD(max_seqs)                                                                                                    \
    FIELD(prefix_cache)                                                                                                \
    FIELD(fixed_us)                                                                                                    \
    FIELD(row_ns)                                                                                                      \
    FIELD(pair_ps)                                                                                                     \
    FIELD(noise_percent)                                                                                               \
    FIELD(sample_us)                                                                                                   \
    FIELD(gap_us)                                                                                                      \
    FIELD(itl_target_ms)                                                                                               \
    FIELD(calibration)                                                                                                 \
    FIELD(draft_blocks)

// head: id of a shared prefix of head_tokens tokens, 0: none. tail: id of tokens that are shared from tail_from on,
// after different beginnings. turn: tokens per turn of a conversation, of which the last `answer` are the answer; with
// answer 0 the first turn is a beginning that other requests share. same_as: id of the request whose own tokens are
// repeated; 0: none. mode: enum prefill_mode. keep, quality, temperature: in thousandths; with a quality and no keep
// rate, all tokens are kept if no calibration applies. reading: 1 asks for log-probabilities, 2 for penalties, 3 for
// log-probabilities of the prompt. stop_after: a stop string ends the answer after this many tokens. retries: how often
// the client tries again after UNAVAILABLE, EXHAUSTED or a lost router. read_us: time in which the client reads a
// token; with more than unread_max tokens unread the front abandons its call. grammar: the length of the answer times
// 100, plus the modulus (grammar.h). rule: enum prune_kind, the rule for pruning of the client's key; bound: its bound
// in thousandths. poison: bit i is set if the worker group that gets the request for the i-th time, from 0, fails its
// next pass after poison_us.
#define SCENARIO_REQUEST(FIELD)                                                                                        \
    FIELD(tokens)                                                                                                      \
    FIELD(head)                                                                                                        \
    FIELD(head_tokens)                                                                                                 \
    FIELD(same_as)                                                                                                     \
    FIELD(turn)                                                                                                        \
    FIELD(answer)                                                                                                      \
    FIELD(tail)                                                                                                        \
    FIELD(tail_from)                                                                                                   \
    FIELD(max_tokens)                                                                                                  \
    FIELD(min_tokens)                                                                                                  \
    FIELD(seed)                                                                                                        \
    FIELD(temperature)                                                                                                 \
    FIELD(ignore_eos)                                                                                                  \
    FIELD(reading)                                                                                                     \
    FIELD(stop_after)                                                                                                  \
    FIELD(tenant)                                                                                                      \
    FIELD(priority)                                                                                                    \
    FIELD(mode)                                                                                                        \
    FIELD(keep)                                                                                                        \
    FIELD(quality)                                                                                                     \
    FIELD(look_ahead)                                                                                                  \
    FIELD(chunk)                                                                                                       \
    FIELD(window)                                                                                                      \
    FIELD(paper)                                                                                                       \
    FIELD(pin_first)                                                                                                   \
    FIELD(pin_last)                                                                                                    \
    FIELD(score_only)                                                                                                  \
    FIELD(importance)                                                                                                  \
    FIELD(deadline_us)                                                                                                 \
    FIELD(retries)                                                                                                     \
    FIELD(read_us)                                                                                                     \
    FIELD(grammar)                                                                                                     \
    FIELD(rule)                                                                                                        \
    FIELD(bound)                                                                                                       \
    FIELD(poison)                                                                                                      \
    FIELD(poison_us)

// Kinds of actions, with the members of struct action that each uses.
#define SCENARIO_KINDS(KIND)                                                                                           \
    KIND(REQUEST, "request") /* id, and the members of `request` */                                                    \
    KIND(CANCEL, "cancel")   /* id: the client of a request leaves */                                                  \
    KIND(ABORT, "abort")     /* id: aborts the request by its request id */                                            \
    KIND(START, "start")     /* node */                                                                                \
    KIND(CRASH, "crash")     /* node, for_us until it starts again, value 1: the router does not see its end */        \
    KIND(BREAK, "break")     /* node, for_us: its next pass fails and ends it */                                       \
    KIND(DRAIN, "drain")     /* node, for_us from its end until it starts again */                                     \
    KIND(FREEZE, "freeze")   /* node, for_us: the whole process stops */                                               \
    KIND(HANG, "hang")       /* node, for_us: its passes hang, its heartbeats go on */                                 \
    KIND(SLOW, "slow")       /* node, for_us, value: factor on pass times */                                           \
    KIND(LIE, "lie")         /* node, for_us, value: enum lie */                                                       \
    KIND(CUT, "cut")         /* node: its stream breaks, both ends see it */                                           \
    KIND(HOLD, "hold")       /* node, for_us: the network delivers nothing of its stream until then */                 \
    KIND(RESTART, "restart") /* for_us from its end until it starts again, value 1: it first drains for two seconds */ \
    KIND(STALL, "stall")     /* for_us: the router's process does not run */                                           \
    KIND(DISMISS, "dismiss") /* node, for_us from its end until it starts again: an operator drains it by its id; */   \
                             /* value 1: only its current process */

enum action_kind {
#define SCENARIO_ENUM(kind, name) ACTION_##kind,
    SCENARIO_KINDS(SCENARIO_ENUM)
#undef SCENARIO_ENUM
        ACTION_KINDS
};

#define SCENARIO_MEMBER(name) int64_t name;
struct scenario_options {
    SCENARIO_OPTIONS(SCENARIO_MEMBER)
};
struct scenario_node {
    SCENARIO_NODE(SCENARIO_MEMBER)
};
struct scenario_request {
    SCENARIO_REQUEST(SCENARIO_MEMBER)
};
#undef SCENARIO_MEMBER

struct action {
    int64_t at_us;
    enum action_kind kind;
    int64_t id, node, for_us, value;
    struct scenario_request request;
};

enum { SCENARIO_VOCAB_MAX = 512 };
struct scenario_load;

struct scenario {
    struct scenario_options options;
    const struct scenario_load *load; // borrowed, not in the text format; NULL: requests make up their prompts
    struct scenario_node *nodes;
    int n_nodes, nodes_capacity;
    struct action *actions; // in order of time
    int n_actions, actions_capacity;
};

void scenario_init(struct scenario *s); // the router's defaults, no nodes, no actions
void scenario_fini(struct scenario *s);
void scenario_add_node(struct scenario *s, struct scenario_node node);
void scenario_add_action(struct scenario *s, struct action action);
void scenario_sort(struct scenario *s); // sorts actions by time; equal times stay in order

void scenario_write(const struct scenario *s, FILE *file);
// Reads a scenario and sorts its actions. Returns STATUS_NOT_FOUND if there is no file, or STATUS_INVALID with a
// message that names the line.
enum status scenario_read(const char *path, struct scenario *s);
