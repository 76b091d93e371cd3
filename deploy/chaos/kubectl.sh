#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the commands of kubectl that plant a fault in a cluster of deploy/kubernetes. It runs nothing: read them first, and
# run deploy/chaos/load.py beside them. --help lists the faults.
. "$(dirname "$0")/common.sh"
platform=Kubernetes
faults="  kill        ends pod T at once
  freeze      stops the processes of pod T, later goes on
  cut         a NetworkPolicy isolates pod T
  disk        fills the volume /tmp of pod T
  certificate cert-manager renews Certificate T every minute
  clock       Kubernetes has no way to change the clock of a pod
  drain       evicts the pods of host T
  roll        replaces the pods of the LeaderWorkerSet T, as its rolloutStrategy says"
kubectl="kubectl -n forepack"
plant_kill() { echo "$kubectl delete pod $1 --grace-period=0 --force"; }
plant_freeze() {
    echo "$kubectl debug $1 --image=busybox --target=worker --profile=general -- killall -STOP forepack-worker"
    echo "sleep $hold"
    echo "$kubectl debug $1 --image=busybox --target=worker --profile=general -- killall -CONT forepack-worker"
}
plant_cut() {
    cat <<END
$kubectl label pod $1 chaos=cut
$kubectl apply -f - <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: chaos-cut}
spec: {podSelector: {matchLabels: {chaos: cut}}, policyTypes: [Ingress, Egress]}
YAML
sleep $hold
$kubectl delete networkpolicy chaos-cut
END
}
plant_disk() {
    echo "$kubectl exec $1 -- sh -c 'dd if=/dev/zero of=/tmp/.chaos-fill bs=64k'"
    echo "sleep $hold"
    echo "$kubectl exec $1 -- rm /tmp/.chaos-fill"
}
plant_certificate() {
    echo "$kubectl patch certificate $1 --type merge -p '{\"spec\":{\"duration\":\"1h\",\"renewBefore\":\"59m\"}}'"
    echo "$kubectl get certificate $1 --watch"
}
plant_clock() { wrong "clock: Kubernetes has no way to change the clock of a pod"; }
plant_drain() { echo "kubectl drain $1 --ignore-daemonsets --delete-emptydir-data"; }
plant_roll() {
    echo "$kubectl patch leaderworkerset $1 --type merge \\"
    echo "    -p '{\"spec\":{\"leaderWorkerTemplate\":{\"workerTemplate\":{\"metadata\":{\"annotations\":{\"replaced\":\"$(date +%s)\"}}}}}}'"
    echo "$kubectl get pods --watch"
}

parse "$@"
[[ ${targets[0]} =~ ^[a-z0-9.-]+$ ]] || wrong "--target '${targets[0]}': must be the name of an object"
plant_"$fault" "${targets[0]}"
