// SPDX-License-Identifier: Apache-2.0
// Executes other programs of Forepack in the folder of this program. Commands that run a model (bench, plan,
// calibrate, generate --model) are in forepack-bench, so that the client `forepack` needs no MPI and no kernels.
#pragma once

// Replaces this process with the program `name` in this program's folder. `argv` contains the arguments from argv[1] on
// and ends with NULL. The environment and the open descriptors do not change. Returns only on failure: prints an error
// message to standard error and returns the exit code 1.
int companion_exec(const char *name, char **argv);
