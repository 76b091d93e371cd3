// SPDX-License-Identifier: Apache-2.0
// The commit of programs that do not say theirs, such as tests. The build generates the function of the others.
#include "lib/base/version.h"

__attribute__((weak)) const char *build_commit(void)
{
    return "unknown";
}
