# SPDX-License-Identifier: Apache-2.0
"""Turns the rendered demo overlay into pods for `podman play kube`, which knows neither LeaderWorkerSets nor Services:
all pods share the host's network, so the router is at 127.0.0.1 and the speculator's probe port is 8081.
podman 4.3 has no host aliases there, no subPath for ConfigMaps and no memory for emptyDir. All else stays as it is.

Usage: pods.py RENDERED.yaml FOLDER      writes FOLDER/COMPONENT.yaml, and FOLDER/probes with lines "COMPONENT PORT PATH\""""
import copy
import os
import sys

import yaml

FIELDS = ("terminationGracePeriodSeconds", "securityContext", "containers", "volumes")


def template_of(document):
    if document["kind"] == "LeaderWorkerSet":
        return document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return document["spec"]["template"]


def pod_of(template, component):
    spec = {name: copy.deepcopy(template["spec"][name]) for name in FIELDS}
    spec["hostNetwork"] = True
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "shm"]
    for volume in spec["volumes"]:
        if "emptyDir" in volume:
            volume["emptyDir"] = {}
    container = spec["containers"][0]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shm"]
    for mount in container["volumeMounts"]:
        if mount.pop("subPath", None):
            mount["mountPath"] = os.path.dirname(mount["mountPath"])
    del container["ports"] # podman maps ports of bridges only
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"): # the test asks them: podman would need curl inside
        del container[probe]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": component, "labels": template["metadata"]["labels"]},
            "spec": spec}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        documents = [document for document in yaml.safe_load_all(file) if document]
    probes = []
    for document in documents:
        if document["kind"] not in ("Deployment", "LeaderWorkerSet"):
            continue
        template = template_of(document)
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        container = template["spec"]["containers"][0]
        shift = 1 if component == "speculator" else 0
        ports = {port["name"]: port["containerPort"] + shift for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container[probe]["httpGet"]
            probes.append("%s %d %s" % (component, ports[get["port"]], get["path"]))
        used = [volume["configMap"]["name"] for volume in template["spec"]["volumes"] if "configMap" in volume]
        maps = [copy.deepcopy(m) for m in documents if m["kind"] == "ConfigMap" and m["metadata"]["name"] in used]
        for config_map in maps:
            for key in config_map["data"]:
                text = config_map["data"][key].replace("forepack-router-nodes", "127.0.0.1")
                config_map["data"][key] = text.replace(":8080", ":%d" % (8080 + shift))
        with open(os.path.join(sys.argv[2], component + ".yaml"), "w", encoding="utf-8") as file:
            yaml.safe_dump_all(maps + [pod_of(template, component)], file)
    with open(os.path.join(sys.argv[2], "probes"), "w", encoding="utf-8") as file:
        file.write("\n".join(sorted(set(probes))) + "\n")


main()
