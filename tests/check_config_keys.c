// SPDX-License-Identifier: Apache-2.0
// Keys of config.json whose meaning depends on other keys: Forepack computes the same as Hugging Face transformers, or
// refuses the file with a sentence that names the key. tests/integration/transformers.sh compares with transformers
// itself.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/text/config.h"
#include "tests/suite.h"

#define SHAPE                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":4,"                   \
    "\"vocab_size\":300,\"max_position_embeddings\":512"
#define LLAMA   "{\"model_type\":\"llama\"," SHAPE
#define MISTRAL "{\"model_type\":\"mistral\",\"num_key_value_heads\":2," SHAPE
#define QWEN2   "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SHAPE

static char path[] = "/tmp/forepack-keys-XXXXXX";

static enum status config_read(const char *text, struct model_config *c)
{
    strcpy(path, "/tmp/forepack-keys-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum status status = model_config_read(path, c);
    unlink(path);
    return status;
}

static struct model_config read_ok(const char *text)
{
    struct model_config c;
    enum status status = config_read(text, &c);
    ck_assert_msg(status == STATUS_OK, "%s: %s", text, status_message());
    return c;
}

static void refuse(const char *text, const char *sentence)
{
    struct model_config c;
    ck_assert_msg(config_read(text, &c) != STATUS_OK, "%s was not refused", text);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "\"%s\" lacks \"%s\"", status_message(), sentence);
}

START_TEST(layer_types_decide_which_layers_have_a_window)
{
    static const struct {
        const char *text;
        int window; // 0: none
    } cases[] = {
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":28}", 0},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":2}", 32},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":32}", 0}, // the class's max_window_layers is 28
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":28,"
               "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
         32},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":0,"
               "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}",
         0},
        {QWEN2 ",\"use_sliding_window\":false,\"sliding_window\":32,\"max_window_layers\":0}", 0},
        // Mistral masks all layers by sliding_window alone.
        {MISTRAL ",\"sliding_window\":32,"
                 "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}",
         32},
        // Llama masks no layer, but transformers' cache drops what is outside of the window.
        {LLAMA ",\"sliding_window\":32}", 32},
        {LLAMA ",\"sliding_window\":32,\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = read_ok(cases[i].text);
        ck_assert_msg(c.sliding_window == cases[i].window, "%s: %d", cases[i].text, c.sliding_window);
        ck_assert_int_eq(c.max_context, cases[i].window ? cases[i].window : 512);
    }
    refuse(QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
           "layer_types has sliding_attention");
    refuse(QWEN2 ",\"layer_types\":[\"full_attention\",\"chunked_attention\",\"full_attention\"]}",
           "layer_types has chunked_attention");
    refuse(QWEN2 ",\"layer_types\":[\"full_attention\"]}", "layer_types must be an array of 3");
    refuse(LLAMA ",\"layer_types\":\"full_attention\"}", "layer_types must be an array of 3");
}
END_TEST

START_TEST(rope_scaling_wins_over_rope_parameters)
{
    struct model_config c = read_ok(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},"
                                          "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0}}");
    ck_assert_double_eq(c.rope.factor, 4);
    ck_assert_double_eq(c.rope.theta, 10000); // transformers drops the rope_theta of rope_parameters
    c = read_ok(LLAMA ",\"rope_theta\":20000.0,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},"
                      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0}}");
    ck_assert_double_eq(c.rope.theta, 20000);
    refuse(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},"
                 "\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":4.0}}",
           "rope_scaling.rope_type is ntk");
    for (int i = 0; i < 2; i++) { // empty or null: not given
        c = read_ok(i ? LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0},\"rope_scaling\":{}}"
                      : LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0},\"rope_scaling\":null}");
        ck_assert_double_eq(c.rope.theta, 500000);
    }
}
END_TEST

#define LLAMA3_VALUES "\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0"
#define LLAMA3        "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0"

START_TEST(the_original_context_is_taken_from_the_top_then_from_the_rope_object_then_from_the_context)
{
    static const struct {
        const char *text;
        int original;
    } cases[] = {
        {LLAMA ",\"original_max_position_embeddings\":64,"
               "\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":128}}",
         64},
        {LLAMA ",\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":128}}", 128},
        {LLAMA ",\"original_max_position_embeddings\":64,\"rope_parameters\":{" LLAMA3 "}}", 64},
        {LLAMA ",\"rope_scaling\":{" LLAMA3 "}}", 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = read_ok(cases[i].text);
        ck_assert_msg(c.rope.original_context == cases[i].original, "%s: %d", cases[i].text, c.rope.original_context);
    }
}
END_TEST

START_TEST(linear_scaling_divides_every_frequency)
{
    float plain[8], scaled[8];
    struct model_config c = read_ok(LLAMA "}");
    rope_config_frequencies(&c.rope, false, plain);
    c = read_ok(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    rope_config_frequencies(&c.rope, false, scaled);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(scaled[i], plain[i] / 4);
    read_ok(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1}}");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling.factor is missing");
}
END_TEST

// The context grows as vLLM computes it.
START_TEST(scaling_extends_the_context)
{
    static const struct {
        const char *scaling;
        int context;
    } cases[] = {
        {"\"linear\",\"factor\":4}}", 2048},
        {"\"linear\",\"factor\":0.5}}", 512},
        {"\"dynamic\",\"factor\":2.5}}", 1280},
        {"\"yarn\",\"factor\":4,\"original_max_position_embeddings\":100}}", 400},
        {"\"yarn\",\"factor\":4}}", 2048},
        {LLAMA3_VALUES "}}", 512},
        {"\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[1,1,1,1,1,1,1,1]}}", 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = mem_format(LLAMA ",\"rope_scaling\":{\"rope_type\":%s", cases[i].scaling);
        ck_assert_msg(read_ok(text).max_context == cases[i].context, "%s", text);
        free(text);
    }
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":0.5}}",
           "rope_scaling.factor is 0.5: must be 1 or more");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[1]}}",
           "rope_scaling.long_factor must be an array of 8 numbers");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,0]}}",
           "rope_scaling.short_factor has an entry 7 that is not a number over 0");
    refuse(LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor is under 1: this architecture rotates");
}
END_TEST

START_TEST(an_object_without_a_rope_type_may_hold_a_theta_alone)
{
    ck_assert_double_eq(read_ok(LLAMA ",\"rope_parameters\":{}}").rope.theta, 10000);
    ck_assert_double_eq(read_ok(LLAMA ",\"rope_parameters\":{\"rope_theta\":7.0}}").rope.theta, 7);
    refuse(LLAMA ",\"rope_scaling\":{\"factor\":2}}", "rope_scaling.factor");
    refuse(LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
           "rope_parameters.full_attention");
    refuse(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"full_attention\":{}}}",
           "rope_parameters.full_attention");
}
END_TEST

START_TEST(other_keys_that_change_the_computation_are_refused)
{
    read_ok(LLAMA ",\"hidden_act\":\"swish\"}"); // another name of silu
    refuse(LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act is gelu");
    refuse(LLAMA ",\"per_layer_config\":{\"0\":{\"intermediate_size\":32}}}", "per_layer_config");
    refuse(LLAMA ",\"attention_chunk_size\":32}", "attention_chunk_size");
    refuse(LLAMA ",\"is_causal\":false}", "is_causal");
}
END_TEST

START_TEST(absent_kv_heads_are_those_of_the_class_and_null_ones_the_query_heads)
{
    ck_assert_int_eq(read_ok(LLAMA "}").n_kv_heads, 4);
    ck_assert_int_eq(read_ok("{\"model_type\":\"mistral\",\"num_key_value_heads\":null," SHAPE "}").n_kv_heads, 4);
    refuse("{\"model_type\":\"mistral\"," SHAPE "}", "num_key_value_heads is 8");
    refuse("{\"model_type\":\"qwen2\"," SHAPE "}", "num_key_value_heads is 32");
}
END_TEST

SUITE("config keys")
{
    TEST(layer_types_decide_which_layers_have_a_window);
    TEST(rope_scaling_wins_over_rope_parameters);
    TEST(the_original_context_is_taken_from_the_top_then_from_the_rope_object_then_from_the_context);
    TEST(linear_scaling_divides_every_frequency);
    TEST(scaling_extends_the_context);
    TEST(an_object_without_a_rope_type_may_hold_a_theta_alone);
    TEST(other_keys_that_change_the_computation_are_refused);
    TEST(absent_kv_heads_are_those_of_the_class_and_null_ones_the_query_heads);
}
