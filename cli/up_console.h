// SPDX-License-Identifier: Apache-2.0
// Prints what `forepack up` shows in a terminal: the path of the log, the addresses of the cluster, and a command to
// try.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

// Opens and empties the log file of the cluster at this port, in $XDG_STATE_HOME/forepack or ~/.local/state/forepack.
// The caller frees *path_p. Call it only after the port was found free: otherwise another cluster may be writing to the
// file.
enum status up_log_open(int *fd_p, char **path_p);

void up_print_starting(const char *log_path);
// `demo` is true if the cluster runs the demo models.
void up_print_ready(bool demo);
void up_print_stopping(void);
