// SPDX-License-Identifier: Apache-2.0
// Checks, from plain lists, the prefix chain at which the last bins of a node stopped in each tenant queue
// (router/sched/prefix_tails.h). Replaces prefix_tails_update() at link time and calls it.
#pragma once

const char *oracle_tails_problem(void); // a problem since the last call; NULL: none
