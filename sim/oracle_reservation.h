// SPDX-License-Identifier: Apache-2.0
// Which overdue request has a worker group reserved (router/sched/reservation.h), from plain lists. Takes the place of
// reservation_update() at link time, which it calls.
#pragma once

const char *oracle_reservation_problem(void); // since the last call; NULL: none
