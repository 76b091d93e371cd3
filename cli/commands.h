// SPDX-License-Identifier: Apache-2.0
// The subcommands of `forepack`. Each function gets the arguments of its command (argv[0] is the command's name) and
// returns the exit code.
#pragma once

int command_up(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_batch(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_score(int argc, char **argv);
int command_compress(int argc, char **argv);
int command_keys(int argc, char **argv);
int command_status(int argc, char **argv);
int command_top(int argc, char **argv);
int command_debug(int argc, char **argv);
int command_drain(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);
int command_completion(int argc, char **argv);
int command_render(int argc, char **argv);
