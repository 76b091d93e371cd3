#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the alert rules of deploy/monitoring/alerts.yaml as a PrometheusRule, since kustomize cannot put the content of
# one file into another. Run it after a change of the rules; tests/integration/kubernetes.sh compares both files.
# Usage: deploy/kubernetes/alerts.sh [FILE]     default: deploy/kubernetes/components/monitoring/prometheus-rule.yaml
set -euo pipefail
cd "$(dirname "$0")"
{
    cat <<'END'
# SPDX-License-Identifier: Apache-2.0
# Written by deploy/kubernetes/alerts.sh from deploy/monitoring/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: forepack
spec:
END
    sed -n '/^groups:/,$p' ../monitoring/alerts.yaml | sed 's/^\(.\)/  \1/'
} >"${1:-components/monitoring/prometheus-rule.yaml}"
