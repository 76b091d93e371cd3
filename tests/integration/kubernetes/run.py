# SPDX-License-Identifier: Apache-2.0
"""Checks one rendered overlay: kubernetes-validate for Kubernetes' own objects and for the pods of LeaderWorkerSets,
check.py for all else. Then plants the faults of faults.py, each of which must be found.

Usage: run.py BIN RENDERED.yaml
  BIN  folder of the programs, whose --help lists their options"""
import copy
import re
import subprocess
import sys

import kubernetes_validate
import yaml

from check import findings
from faults import FAULTS, LARGE_FAULTS, pod
from manifests import Manifests

RELEASES = ["1.35", "1.36", "1.37"]
PROGRAMS = ["forepack-router", "forepack-worker", "forepack-speculator"]
DEFINED_ELSEWHERE = ["LeaderWorkerSet", "ScaledObject", "ServiceMonitor", "PodMonitor", "PrometheusRule", "Issuer",
                     "Certificate"]


def known_options(folder):
    known = {}
    for program in PROGRAMS:
        text = subprocess.run([folder + "/" + program, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        known[program] = set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
    return known


def in_pod(document):
    """Returns the pod of a LeaderWorkerSet as an object that Kubernetes knows."""
    template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "group", **template["metadata"]}, "spec": template["spec"]}


def release_findings(manifests):
    for document in manifests.documents:
        if document["kind"] in DEFINED_ELSEWHERE and document["kind"] != "LeaderWorkerSet":
            continue
        checked = in_pod(document) if document["kind"] == "LeaderWorkerSet" else document
        for release in RELEASES:
            try:
                kubernetes_validate.validate(checked, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield "%s/%s: Kubernetes %s: %s" % (document["kind"], document["metadata"]["name"], release, error.message)
            except kubernetes_validate.SchemaNotFoundError:
                yield "%s/%s: Kubernetes %s has no such kind" % (document["kind"], document["metadata"]["name"], release)


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        manifests = Manifests(list(yaml.safe_load_all(file)))
    known = known_options(sys.argv[1])
    found = findings(manifests, known) + list(release_findings(manifests))
    for finding in found:
        print(finding)
    large = manifests.find("ServiceMonitor", "forepack-router") is not None
    faults = FAULTS + (LARGE_FAULTS if large else [])
    broken = Manifests(copy.deepcopy(manifests.documents))
    pod(broken, "forepack-worker")["hostname_"] = "group"
    if not list(release_findings(broken)):
        found.append("kubernetes-validate finds no wrong field")
    for number, (word, plant) in enumerate(faults):
        broken = Manifests(copy.deepcopy(manifests.documents))
        plant(broken)
        if not any(word in finding for finding in findings(broken, known)):
            print("fault %d is not found: expected a finding with '%s'" % (number, word))
            found.append(word)
    print("%d objects, %d faults were planted and found" % (len(manifests.documents), len(faults)) if not found else
          "%d findings" % len(found))
    return 1 if found else 0


sys.exit(main())
