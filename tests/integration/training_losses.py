# SPDX-License-Identifier: Apache-2.0
"""The losses of deploy/demo-model/train.py are small for the weights of that folder, which were trained with them, and large
for weights with the queries of a layer permuted.

Usage: PYTHONPATH=deploy/demo-model training_losses.py FOREPACK
"""
import itertools
import sys

import torch

import model
import train


def batch(task):
    return list(itertools.islice(train.documents(sys.argv[1], task, (300, 500), 2000), 2))


def forward(trainer, samples, layer=None):
    """Loads the weights unchanged, or with the queries of a layer permuted."""
    weights = trainer.w
    if layer is not None:
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        weights = weights | {name: weights[name].roll(1, 0)}
    return model.forward(trainer.c, weights, *train.collate(samples)[:2])[2]


def check(what, loss, trained, permuted, bound):
    trained, permuted = loss(trained), loss(permuted)
    print(f"{what}: {trained:.3f}, permuted {permuted:.3f}")
    assert trained < bound < permuted, what


def check_heads(trainer):
    for task in train.TASKS:
        samples = batch(task)
        wanted = [train.attention_targets(train.Text(trainer.texts, s.ids), s) for s in samples]
        trained = forward(trainer, samples)
        permuted = {layer: forward(trainer, samples, layer) for layer in {layer for layer, *_ in train.HEADS.values()}}
        for kind, (layer, *_) in train.HEADS.items():
            if (task, kind) == ("facts", "asked") or not any(t[kind] for t in wanted):     # facts are found without it
                continue
            alone = [{k: rows if k == kind else [] for k, rows in t.items()} for t in wanted]
            check(f"{task}, {kind}", lambda heads: train.attention_loss(heads, alone), trained, permuted[layer], 0.7)


def check_importance(trainer):
    for task in train.TASKS:
        samples = batch(task)
        check(f"{task}, importance", lambda heads: train.importance_loss(heads, samples, trainer.ends),
              forward(trainer, samples), forward(trainer, samples, 1), 2.5)


torch.set_num_threads(1)
with torch.no_grad():
    check_heads(train.Trainer("main", sys.argv[1], 1))
    check_importance(train.Trainer("speculator", sys.argv[1], 1))
