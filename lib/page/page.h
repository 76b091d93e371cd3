// SPDX-License-Identifier: Apache-2.0
// Pages that Forepack writes, embedded at build time: the live page of the router, and the style sheet, which `forepack
// score --html` and the reports of benchmarks also use. Constant; any thread.
#pragma once

#include <stddef.h>

extern const unsigned char page_style[], page_live[], page_script[]; // UTF-8: CSS, HTML, JavaScript
extern const size_t page_style_size, page_live_size, page_script_size;
