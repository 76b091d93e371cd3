// SPDX-License-Identifier: Apache-2.0
// Finds files that belong to this program by their place relative to the program, so that a tree can be moved.
#pragma once

// Returns the path of `relative`, a path relative to this program's folder. The file need not exist. The caller frees
// the path.
char *program_path(const char *relative);
