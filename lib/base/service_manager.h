// SPDX-License-Identifier: Apache-2.0
// Tells the service manager that started the process, such as systemd, how the process is doing. The protocol is that
// of sd_notify(3): each message is one datagram to the socket that NOTIFY_SOCKET names. If that variable is not set,
// every function does nothing.
//
// Any thread may call every function after service_manager_open().
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and removes them from the environment, so that a child does not
// speak for this process. Call it before other threads start.
void service_manager_open(void);
// Returns true if a service manager listens.
bool service_manager_listens(void);

void service_manager_ready(void);     // the start is over
void service_manager_reloading(void); // the configuration is read again, until service_manager_ready()
void service_manager_stopping(void);

// Sets the sentence that `systemctl status` shows. Sends nothing if the sentence has not changed.
__attribute__((format(printf, 1, 2))) void service_manager_set_status(const char *format, ...);
// Gives a start that makes progress more time, counted from now. The manager ends a long start otherwise.
void service_manager_extend_start(int64_t us);

// Returns the interval at which the caller must look for progress, so that the watchdog hears of it in time: at most
// `longest_us`.
int64_t service_manager_interval_us(int64_t longest_us);
// Tells the watchdog that the main work makes progress. Sends at most one message in half of the watchdog's time.
void service_manager_alive(int64_t now_us);
