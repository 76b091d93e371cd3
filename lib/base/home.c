// SPDX-License-Identifier: Apache-2.0
#include "lib/base/home.h"

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

void home_ensure(void)
{
    if (!getenv("HOME") && !getpwuid(getuid())) setenv("HOME", "/", 0);
}
