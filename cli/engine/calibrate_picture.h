// SPDX-License-Identifier: Apache-2.0
// The picture of `forepack calibrate`: right answers by keep rate, for each task.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// Writes an SVG file from the member "measured" of a calibration.
enum status calibrate_picture_write(const char *path, const json_t *measured);
