// SPDX-License-Identifier: Apache-2.0
// The shell functions in this folder, which the build embeds.
#pragma once

#include <stddef.h>

extern const unsigned char completion_bash[], completion_zsh[], completion_fish[];
extern const size_t completion_bash_size, completion_zsh_size, completion_fish_size;
