// SPDX-License-Identifier: Apache-2.0
// config.json, generation_config.json, tokenizer_config.json and tokenizer.json of a checkpoint, as texts with a NUL
// between them. An accepted
// configuration has the sizes that the rest of the program relies on.
#include <math.h>

#include "lib/text/config.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

static void put_part(const char *name, struct fuzz_script *script)
{
    struct fuzz_script part = fuzz_text(script);
    if (part.left)
        fuzz_folder_put(name, part.at, part.left);
    else
        fuzz_folder_drop(name);
}

static void check_angles(const struct model_config *config)
{
    int n = config->head_size / 2;
    float *inv_freq = malloc((size_t)n * sizeof *inv_freq);
    rope_config_frequencies(&config->rope, false, inv_freq);
    for (int i = 0; i < n; i++)
        FUZZ_CHECK(isfinite(inv_freq[i]) && inv_freq[i] >= 0);
    free(inv_freq);
}

static void check_config(const struct model_config *config)
{
    FUZZ_CHECK(config->n_layers > 0 && config->hidden > 0 && config->intermediate > 0 && config->head_size > 0);
    FUZZ_CHECK(config->n_kv_heads > 0 && config->n_heads % config->n_kv_heads == 0 && config->head_size % 2 == 0);
    FUZZ_CHECK(config->vocab_size > 0 && config->max_context > 0 && config->sliding_window >= 0);
    FUZZ_CHECK(config->norm_epsilon >= 0 && isfinite(config->norm_epsilon) && isfinite(config->rope.theta));
    FUZZ_CHECK(config->bos_id >= -1 && config->bos_id < config->vocab_size);
    FUZZ_CHECK(config->n_eos >= 0 && config->n_eos <= MODEL_MAX_EOS);
    for (int i = 0; i < config->n_eos; i++)
        FUZZ_CHECK(config->eos_id[i] >= 0 && model_config_is_eos(config, config->eos_id[i]));
    FUZZ_CHECK(isfinite(model_config_pair_rows(config)));
    FUZZ_CHECK(config->scales.residual > 0 && config->scales.logits > 0 && config->scales.attention >= 0);
    FUZZ_CHECK(config->rope.query_beta == 0 || config->rope.query_context > 0);
    check_angles(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    struct model_config config;
    put_part("config.json", &script);
    put_part("generation_config.json", &script);
    put_part("tokenizer_config.json", &script);
    put_part("tokenizer.json", &script);
    if (model_config_read(fuzz_folder(), &config) == STATUS_OK)
        check_config(&config);
    else
        FUZZ_CHECK(*status_message());
    return 0;
}
