// SPDX-License-Identifier: Apache-2.0
// Other programs of Forepack, which are installed in the same folder. `forepack` is a client. Commands that run a model
// (bench, plan, calibrate, generate --model) belong to forepack-bench, so that the client needs no MPI and no kernels.
#pragma once

// Returns the path of the program NAME in this program's folder; free() it.
char *companion_path(const char *name);

// Replaces this process with the program NAME in this program's folder. `argv` holds its arguments from argv[1] on and
// ends with NULL. The environment and open descriptors stay. Returns only on failure: prints one sentence on standard
// error and returns the exit code 1.
int companion_exec(const char *name, char **argv);
