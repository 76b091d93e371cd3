// SPDX-License-Identifier: Apache-2.0
// The commands of `forepack` that run a model in their process. They belong to the companion program forepack-bench,
// which has the engine and MPI; `forepack` starts it. Each command takes its own arguments (argv[0] is the command's
// name) and returns the exit code.
#pragma once

int engine_command_plan(int argc, char **argv);
int engine_command_calibrate(int argc, char **argv);
int engine_command_generate(int argc, char **argv);
