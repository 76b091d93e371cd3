// SPDX-License-Identifier: Apache-2.0
// Messages of a router into a node of either role, on the simulator's engine, which checks the KV entries of every
// batch. The input is a script of messages and passes.
#pragma once

#include "router/sched/view.h"
#include "sim/role.h"
#include "tests/fuzz/fuzz.h"

enum { FUZZ_VOCAB = 64, FUZZ_CONTEXT = 128, FUZZ_IDS = 8, FUZZ_ITEMS_MAX = 4, FUZZ_TOKENS_MAX = 140 };

// Makes a bin of the role from the script; the message is valid until the next call.
typedef const Forepack__Cluster__V1__RouterMessage *fuzz_bin_fn(struct fuzz_script *script);

// Runs the script. Every pass works; when all work has been dropped, no KV block is held.
void fuzz_role_run(const struct role_ops *role, enum node_role kind, fuzz_bin_fn *make_bin, struct fuzz_script *script);

// Token ids that are mostly in the vocabulary. Returns how many there are.
size_t fuzz_tokens(struct fuzz_script *script, uint32_t tokens[FUZZ_TOKENS_MAX]);
