// SPDX-License-Identifier: Apache-2.0
// Checks the overdue request that has a worker group reserved (router/sched/reservation.h), from plain lists. Replaces
// reservation_update() at link time and calls it.
#pragma once

const char *oracle_reservation_problem(void); // of the time since the last call; NULL: none
