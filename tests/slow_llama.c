// SPDX-License-Identifier: Apache-2.0
// The slow model. Matrices are [outputs][inputs], as stored.
#include "tests/slow_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

struct slow_llama {
    struct tiny_model spec;
    int n_tensors;
    struct tiny_tensor *tensors;
    double **values;
};

struct slow_llama *slow_llama_create(const struct tiny_model *spec)
{
    struct slow_llama *slow = mem_alloc(sizeof *slow);
    slow->spec = *spec;
    slow->tensors = tiny_model_tensors(spec, &slow->n_tensors);
    slow->values = mem_alloc_array((size_t)slow->n_tensors, sizeof *slow->values);
    for (int i = 0; i < slow->n_tensors; i++) {
        const struct tiny_tensor *t = &slow->tensors[i];
        size_t n = (size_t)(t->rows ? t->rows : 1) * (size_t)t->columns;
        slow->values[i] = mem_alloc_array(n, sizeof(double));
        for (size_t e = 0; e < n; e++)
            slow->values[i][e] = (double)tiny_model_value(spec, t, e);
    }
    return slow;
}

void slow_llama_free(struct slow_llama *slow)
{
    for (int i = 0; i < slow->n_tensors; i++)
        free(slow->values[i]);
    free(slow->values);
    free(slow->tensors);
    free(slow);
}

// Returns NULL if the model has no such tensor.
static const double *slow_tensor(const struct slow_llama *slow, int layer, const char *name)
{
    char full[128];
    if (layer >= 0)
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    for (int i = 0; i < slow->n_tensors; i++)
        if (strcmp(slow->tensors[i].name, full) == 0) return slow->values[i];
    return NULL;
}

// Computes y[i] = sum_j w[i][j] x[j] + bias[i].
static void multiply(const double *w, const double *bias, const double *x, int outputs, int inputs, double *y)
{
    for (int i = 0; i < outputs; i++) {
        double sum = bias ? bias[i] : 0;
        for (int j = 0; j < inputs; j++)
            sum += w[(size_t)i * (size_t)inputs + (size_t)j] * x[j];
        y[i] = sum;
    }
}

static void norm(const double *x, const double *gain, int n, double *y)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i];
    double scale = 1 / sqrt(square / n + 1e-5);
    for (int i = 0; i < n; i++)
        y[i] = gain[i] * (x[i] * scale);
}

// Computes x cos + rotate_half(x) sin in place, with Llama 3.1's frequencies (three ranges of wavelengths).
static void rope(const struct tiny_model *spec, double *head, int position)
{
    double theta = strcmp(spec->family, "llama") == 0 ? 10000 : 500000;
    int d = spec->head_size;
    for (int i = 0; i < d / 2; i++) {
        double frequency = 1 / pow(theta, 2.0 * i / d);
        if (strcmp(spec->family, "llama3") == 0) {
            double original = spec->max_context / 4.0, wavelength = 2 * M_PI / frequency;
            double smooth = (original / wavelength - 1) / (4 - 1);
            if (wavelength > original / 1)
                frequency /= 8;
            else if (wavelength >= original / 4)
                frequency = (1 - smooth) * frequency / 8 + smooth * frequency;
        }
        double angle = (double)((float)position * (float)frequency); // in f32, as transformers
        double c = cos(angle), s = sin(angle), a = head[i], b = head[i + d / 2];
        head[i] = a * c - b * s;
        head[i + d / 2] = b * c + a * s;
    }
}

// Computes q, k, v of one row, rotated.
static void project(const struct slow_llama *slow, int layer, const double *normed, int position, double *q, double *k,
                    double *v)
{
    const struct tiny_model *m = &slow->spec;
    int d = m->head_size;
    multiply(slow_tensor(slow, layer, "self_attn.q_proj.weight"), slow_tensor(slow, layer, "self_attn.q_proj.bias"),
             normed, m->n_heads * d, m->hidden, q);
    multiply(slow_tensor(slow, layer, "self_attn.k_proj.weight"), slow_tensor(slow, layer, "self_attn.k_proj.bias"),
             normed, m->n_kv_heads * d, m->hidden, k);
    multiply(slow_tensor(slow, layer, "self_attn.v_proj.weight"), slow_tensor(slow, layer, "self_attn.v_proj.bias"),
             normed, m->n_kv_heads * d, m->hidden, v);
    const double *q_norm = slow_tensor(slow, layer, "self_attn.q_norm.weight");
    const double *k_norm = slow_tensor(slow, layer, "self_attn.k_norm.weight");
    for (int h = 0; h < m->n_heads; h++) {
        if (q_norm) norm(q + h * d, q_norm, d, q + h * d);
        rope(m, q + h * d, position);
    }
    for (int h = 0; h < m->n_kv_heads; h++) {
        if (k_norm) norm(k + h * d, k_norm, d, k + h * d);
        rope(m, k + h * d, position);
    }
}

// Computes out[i] = sum over j <= i of softmax(score[i])[j] v[j], for one query head.
static void attend(const struct tiny_model *m, int head, const double *q, const double *k, const double *v, int n,
                   double *score, double *out)
{
    double *weight = mem_alloc_array((size_t)n, sizeof *weight);
    int d = m->head_size, q_width = m->n_heads * d, kv_width = m->n_kv_heads * d;
    int kv_head = head / (m->n_heads / m->n_kv_heads);
    for (int i = 0; i < n; i++) {
        double largest = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            double dot = 0;
            for (int e = 0; e < d; e++)
                dot += q[i * q_width + head * d + e] * k[j * kv_width + kv_head * d + e];
            score[i * n + j] = dot / sqrt(d);
            largest = fmax(largest, score[i * n + j]);
        }
        for (int j = 0; j <= i; j++)
            sum += weight[j] = exp(score[i * n + j] - largest);
        for (int j = 0; j <= i; j++)
            for (int e = 0; e < d; e++)
                out[i * q_width + head * d + e] += weight[j] / sum * v[j * kv_width + kv_head * d + e];
    }
    free(weight);
}

static void mlp(const struct slow_llama *slow, int layer, const double *normed, double *out)
{
    const struct tiny_model *m = &slow->spec;
    double *gate = mem_alloc_array((size_t)m->intermediate * 2, sizeof *gate), *up = gate + m->intermediate;
    multiply(slow_tensor(slow, layer, "mlp.gate_proj.weight"), NULL, normed, m->intermediate, m->hidden, gate);
    multiply(slow_tensor(slow, layer, "mlp.up_proj.weight"), NULL, normed, m->intermediate, m->hidden, up);
    for (int i = 0; i < m->intermediate; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    multiply(slow_tensor(slow, layer, "mlp.down_proj.weight"), NULL, gate, m->hidden, m->intermediate, out);
    free(gate);
}

void slow_llama_run(const struct slow_llama *slow, const int32_t *token, const int32_t *position, int n, double *logits,
                    double *scores)
{
    const struct tiny_model *m = &slow->spec;
    int hidden = m->hidden, q_width = m->n_heads * m->head_size, kv_width = m->n_kv_heads * m->head_size;
    size_t rows = (size_t)n, square = rows * rows;
    double *x = mem_alloc_array(rows * (size_t)hidden, sizeof *x);
    double *normed = mem_alloc_array((size_t)hidden * 2, sizeof *normed), *part = normed + hidden;
    double *q = mem_alloc_array(rows * (size_t)q_width, sizeof *q);
    double *k = mem_alloc_array(rows * (size_t)kv_width, sizeof *k);
    double *v = mem_alloc_array(rows * (size_t)kv_width, sizeof *v);
    double *out = mem_alloc_array(rows * (size_t)q_width, sizeof *out);
    double *scratch = mem_alloc_array(square, sizeof *scratch);

    const double *table = slow_tensor(slow, -1, "model.embed_tokens.weight"),
                 *head = slow_tensor(slow, -1, "lm_head.weight");
    table = table ? table : head;
    head = head ? head : table;
    for (int i = 0; i < n; i++)
        memcpy(x + i * hidden, table + token[i] * hidden, (size_t)hidden * sizeof *x);

    for (int layer = 0; layer < m->n_layers; layer++) {
        for (int i = 0; i < n; i++) {
            norm(x + i * hidden, slow_tensor(slow, layer, "input_layernorm.weight"), hidden, normed);
            project(slow, layer, normed, position[i], q + i * q_width, k + i * kv_width, v + i * kv_width);
        }
        memset(out, 0, rows * (size_t)q_width * sizeof *out);
        for (int h = 0; h < m->n_heads; h++) {
            size_t place = ((size_t)layer * (size_t)m->n_heads + (size_t)h) * square;
            attend(m, h, q, k, v, n, scores ? scores + place : scratch, out);
        }
        for (int i = 0; i < n; i++) {
            multiply(slow_tensor(slow, layer, "self_attn.o_proj.weight"),
                     slow_tensor(slow, layer, "self_attn.o_proj.bias"), out + i * q_width, hidden, q_width, part);
            for (int e = 0; e < hidden; e++)
                x[i * hidden + e] += part[e];
            norm(x + i * hidden, slow_tensor(slow, layer, "post_attention_layernorm.weight"), hidden, normed);
            mlp(slow, layer, normed, part);
            for (int e = 0; e < hidden; e++)
                x[i * hidden + e] += part[e];
        }
    }
    for (int i = 0; i < n; i++) {
        norm(x + i * hidden, slow_tensor(slow, -1, "model.norm.weight"), hidden, normed);
        multiply(head, NULL, normed, m->vocab_size, hidden, logits + (size_t)i * (size_t)m->vocab_size);
    }
    free(x);
    free(normed);
    free(q);
    free(k);
    free(v);
    free(out);
    free(scratch);
}
