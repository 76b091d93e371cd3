// SPDX-License-Identifier: Apache-2.0
// Checks, from plain lists, which overdue request has reserved a worker group (router/sched/reservation.h). Replaces
// reservation_update() at link time and calls it.
#pragma once

const char *oracle_reservation_problem(void); // a problem since the last call; NULL: none
