// SPDX-License-Identifier: Apache-2.0
// The commands of `forepack` that run a model in their process. They are in the companion program forepack-bench, which
// contains the engine and MPI. `forepack` executes this program. Each function gets the arguments of its command
// (argv[0] is the command's name) and returns the exit code.
#pragma once

int engine_command_plan(int argc, char **argv);
int engine_command_calibrate(int argc, char **argv);
int engine_command_generate(int argc, char **argv);
