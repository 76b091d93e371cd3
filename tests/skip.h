// SPDX-License-Identifier: Apache-2.0
// The exit code that CTest shows as skipped.
#pragma once

enum { EXIT_SKIPPED = 77 };
