// SPDX-License-Identifier: Apache-2.0
// Reads how the matrices of a checkpoint are quantised: the key quantization_config of config.json.
#pragma once

#include "lib/text/config.h"
#include "lib/text/config_reader.h"

// Sets the members of `c` that describe stored weights. Reads c->n_layers. Ignores settings of activations: a
// calibrated scale (activation_scheme static) and a bound against outliers (activation_scale_ub). Here the largest
// value of a row decides its scale, so nothing is clipped and no row depends on another row.
void quantisation_config_read(struct config_reader *r, struct model_config *c);
