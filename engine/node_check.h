// SPDX-License-Identifier: Apache-2.0
// The checks of --check-config that need files: tokenizer, config.json, the headers of the weights with the split over
// the ranks and the types, and the files of the link to the router. Opens no port and reads no weights.
#pragma once

#include "engine/model/model.h"
#include "engine/node.h"

// `tokenizer` is the directory of the tokenizer.
enum status node_check_files(const struct model_options *model, const char *tokenizer,
                             const struct node_router *router);
