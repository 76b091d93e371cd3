// SPDX-License-Identifier: Apache-2.0
// The answer of GET /tokenizer_info: what a client needs to render chats and count tokens itself, as in vLLM. It has
// the special tokens and the chat template of the model.
#pragma once

// Reads tokenizer_config.json and the chat template of the model. `template_file` replaces the model's template; NULL:
// none. Returns JSON, which the caller frees. Members that the files do not have, or that cannot be read, are null.
char *tokenizer_info_read(const char *model_dir, const char *template_file, int max_context);
