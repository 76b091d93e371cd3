// SPDX-License-Identifier: Apache-2.0
// generation_config.json next to a good config.json: it can only change the ids that begin and end a text.
#include "lib/text/config.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

static const char config_json[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":512,\"max_position_embeddings\":256,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\"}";

static struct model_config plain(void)
{
    struct model_config config;
    fuzz_folder_drop("generation_config.json");
    fuzz_folder_put("config.json", (const uint8_t *)config_json, sizeof config_json - 1);
    FUZZ_CHECK(model_config_read(fuzz_folder(), &config) == STATUS_OK);
    return config;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model_config without;
    struct model_config with;
    if (!without.vocab_size) without = plain();
    fuzz_folder_put("generation_config.json", data, size);
    if (model_config_read(fuzz_folder(), &with) != STATUS_OK) {
        FUZZ_CHECK(*status_message());
        return 0;
    }
    FUZZ_CHECK(with.hidden == without.hidden && with.max_context == without.max_context);
    FUZZ_CHECK(with.bos_id >= -1 && with.bos_id < with.vocab_size);
    FUZZ_CHECK(with.n_eos >= 1 && with.n_eos <= MODEL_MAX_EOS && model_config_is_eos(&with, 2));
    for (int i = 0; i < with.n_eos; i++)
        FUZZ_CHECK(with.eos_id[i] >= 0 && with.eos_id[i] < with.vocab_size);
    return 0;
}
