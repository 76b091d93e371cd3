// SPDX-License-Identifier: Apache-2.0
// The commands of `forepack debug`.
#pragma once

int debug_bundle(int argc, char **argv);
int debug_request(int argc, char **argv);
