// SPDX-License-Identifier: Apache-2.0
// Where the bins of a node leave off with each tenant queue (router/sched/prefix_tails.h), from plain lists. Takes the
// place of prefix_tails_update() at link time, which it calls.
#pragma once

const char *oracle_tails_problem(void); // since the last call; NULL: none
