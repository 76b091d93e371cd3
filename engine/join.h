// SPDX-License-Identifier: Apache-2.0
// Forms a worker group over several hosts without ssh. On one host, the leader listens for the followers of the other
// hosts, which prove that they know the cluster token, and starts mpirun. mpirun starts its daemon on another host
// through a launch agent, which is this program again, and the leader's connection to the follower of that host. A
// follower starts nothing but that daemon, orted, with settings that it has checked (join_messages.h).
//
//   join_messages.c   frames, greetings, the check of the command
//   join_proof.c      keys and proofs
//   join_link.c       a connection
//   join_process.c    mpirun, orted and their children
//   join_agent.c      the launch agent
//   join_follower.c   --join
//   join_leader.c     --lead
//   join.c            checks the options and chooses
//
// When a follower is lost, the leader ends the group and exits with 1, to be started again by whoever started it. When
// the leader is lost, its followers end the ranks of their hosts and wait for the next leader.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/options.h"
#include "lib/base/status.h"

struct join_options {
    char *lead, *join;      // HOST:PORT to listen on, or of the leader; NULL: not given
    int64_t hosts;          // of the group
    int64_t ranks_per_host; // equal on all hosts
    int64_t wait_s;         // limit for the followers to appear; 0: no limit
    char *mpirun_options;   // further options of mpirun, divided at blanks; NULL: none
    // Options of the node, set by node_main().
    const char *token_file, *tls_cert, *tls_key, *tls_ca;
};

// clang-format off
#define JOIN_OPTION_ROWS(o)                                                                                            \
    {.name = "-Groups of several ranks, without mpirun and ssh"},                                                      \
    {.name = "lead", .type = OPTION_STRING, .placeholder = "HOST:PORT", .value = &(o).lead,                            \
     .help = "start mpirun for the ranks of all hosts, after waiting here for the other hosts, which have --join"},    \
    {.name = "join", .type = OPTION_STRING, .placeholder = "HOST:PORT", .value = &(o).join,                            \
     .help = "offer this host to the leader at this address, again and again until SIGTERM"},                          \
    {.name = "hosts", .type = OPTION_INT, .value = &(o).hosts, .default_text = "1", .min = 1, .max = 256,              \
     .help = "with --lead: hosts of the group, this one included"},                                                    \
    {.name = "ranks-per-host", .type = OPTION_INT, .value = &(o).ranks_per_host, .default_text = "1", .min = 1,        \
     .max = 1024, .help = "with --lead: ranks on each host"},                                          \
    {.name = "hosts-wait-s", .type = OPTION_INT, .value = &(o).wait_s, .default_text = "600", .max = 86400,            \
     .unit = "s", .help = "with --lead: limit for the other hosts to appear; 0: no limit"},                            \
    {.name = "mpirun-options", .type = OPTION_STRING, .placeholder = "TEXT", .value = &(o).mpirun_options,             \
     .help = "with --lead: further options of mpirun, divided at blanks"}
// clang-format on

// Checks the options for conflicts. Returns STATUS_INVALID.
enum status join_check(const struct join_options *options);
// Leads or follows until the end. Returns the exit code, or -1 if neither option is given or this process is a rank.
int join_run(const char *program, const struct join_options *options, char **argv);
// Returns the exit code if this process is the launch agent that mpirun started, else -1.
int join_agent_run(int argc, char **argv);
