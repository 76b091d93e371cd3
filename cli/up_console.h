// SPDX-License-Identifier: Apache-2.0
// What `forepack up` shows in a terminal: where the log is, the addresses of the cluster, and a command to try.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

// Opens and empties the log file of the cluster at this port, in $XDG_STATE_HOME/forepack or ~/.local/state/forepack.
// The caller frees *path_p. Call it when the port is known to be free: another cluster could write to the file.
enum status up_log_open(int *fd_p, char **path_p);

void up_print_starting(const char *log_path);
// `demo`: the cluster runs the demo models.
void up_print_ready(bool demo);
void up_print_stopping(void);
