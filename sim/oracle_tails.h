// SPDX-License-Identifier: Apache-2.0
// Checks the chains with which the last bins of a node left each tenant queue (router/sched/prefix_tails.h), from plain
// lists. Replaces prefix_tails_update() at link time and calls it.
#pragma once

const char *oracle_tails_problem(void); // of the time since the last call; NULL: none
