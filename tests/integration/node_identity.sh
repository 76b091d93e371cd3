#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Who may connect: nothing listens beyond loopback without TLS, a node is identified before a byte of it is read, and a node
# that is refused attaches once the cause is mended.
. "$(dirname "$0")/lib.sh"

# refuses PATTERN FLAGS...: a router with these flags ends with 2 and one line.
refuses() {
    local pattern=$1 code=0
    shift
    timeout 60 "$bin/forepack-router" --model "$main_model" --port 0 --http-port 0 "$@" >"$work/refused" 2>&1 || code=$?
    equal 2 "$code" "exit code of a router with $*"
    grep -q "start_failed .*$pattern" "$work/refused" || fail "no '$pattern' for $*: $(cat "$work/refused")"
}

certs=$work/certs
"$source_dir/deploy/certificates.sh" "$certs" router=127.0.0.1,localhost node client
"$source_dir/deploy/certificates.sh" "$certs/foreign" node
(umask 077; echo "a-secret-of-enough-characters" >"$work/token"; echo "another-secret-of-the-cluster" >"$work/node-token")

# --- the rule of exposure

node_tls=(--node-tls-cert "$certs/router.pem" --node-tls-key "$certs/router.key")
refuses "host 0.0.0.0: .*without TLS: give --tls-cert" --host 0.0.0.0
refuses "host \[::\]: .*without TLS" --host '[::]'
refuses "node-listen 0.0.0.0:0: .*without TLS: give --node-tls-cert" --node-listen 0.0.0.0:0
refuses "node-listen 0.0.0.0:0: .*without TLS" --node-listen 0.0.0.0:0 --cluster-token-file "$work/token"
refuses "any machine could attach as a node" --node-listen 0.0.0.0:0 "${node_tls[@]}"
refuses "tls-cert and --tls-key: must be given together" --tls-cert "$certs/router.pem"
refuses "node-tls-ca: needs --node-tls-cert" --node-tls-ca "$certs/ca.pem"
refuses "is not the private key of" --node-listen 127.0.0.1:0 --tls-cert "$certs/router.pem" --tls-key "$certs/node.key"
refuses "port and --http-port: both are 127.0.0.1:4000: choose two ports" --port 4000 --http-port 4000
refuses "http-port and --node-listen: both are 127.0.0.1:50052" --http-port 50052
refuses "is not the private key of" --node-listen 127.0.0.1:0 --tls-cert "$certs/router.pem" --tls-key "$certs/node.key" \
    --tls-client-ca "$certs/ca.pem" "${node_tls[@]}" --node-tls-ca "$certs/ca.pem"
grep -q "warn router authority_shared" "$work/refused" || fail "no warning of one authority for clients and nodes"
refuses "fingerprint 'cafe': must be 16 hexadecimal digits" --model-fingerprint cafe

install -m 644 "$work/token" "$work/open-token"
refuses "every user can read this secret" --node-listen 127.0.0.1:0 --cluster-token-file "$work/open-token"
(umask 077; echo short >"$work/short")
refuses "must have at least 16" --node-listen 127.0.0.1:0 --cluster-token-file "$work/short"

start insecure "$bin/forepack-router" --model "$main_model" --host 0.0.0.0 --port 0 --http-port 0 --node-listen 0.0.0.0:0 --insecure
wait_until 20 "an insecure router listens" grep -q router_listening "$work/insecure.log"
equal 2 "$(grep -c "warn router listening_insecurely" "$work/insecure.log")" "warnings of an insecure router"
kill -TERM "$last_pid"
wait "$last_pid" || fail "the insecure router did not end well"

code=0
"$bin/forepack" up --port 7999 2>"$work/up-refused" || code=$?
equal "2 1" "$code $(grep -c 'node-port and --http-port: both are 8000: choose two ports' "$work/up-refused")" "forepack up with one port for nodes and HTTP"

code=0
"$bin/forepack" up --host 0.0.0.0 --port "$(free_port)" 2>"$work/up-refused" || code=$?
equal 2 "$code" "exit code of forepack up beyond loopback"
grep -q "without TLS: give --tls-cert" "$work/up-refused" || fail "forepack up beyond loopback: $(cat "$work/up-refused")"

# --- nodes: mutual TLS and a token

choose_ports
tls=(--tls-cert "$certs/router.pem" --tls-key "$certs/router.key" "${node_tls[@]}" --node-tls-ca "$certs/ca.pem")
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" "${tls[@]}" --cluster-token-file "$work/token"
router_pid=$last_pid
wait_until 20 "the router listens" grep -q router_listening "$work/router.log"
status_json() { "$bin/forepack" status --server "$server" --tls-ca "$certs/ca.pem" --json; }
worker=("$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1)
mine=(--node-tls-ca "$certs/ca.pem" --node-tls-cert "$certs/node.pem" --node-tls-key "$certs/node.key")

# attach SERVER [TOKEN]: calls Attach with bytes that are no message, or with PAYLOAD=results with a message of 1.2 million
# empty results; prints code and sentence.
attach() {
    /usr/bin/python3 - "$certs" "$@" <<'PYTHON'
import os, sys, grpc
results = b"\x0a\x00" * 1200000  # field 1 of StepResults
length = len(results)
varint = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21])
payload = b"\x22" + varint + results if os.environ.get("PAYLOAD") else b"\xff" * 100
certs, server, *token = sys.argv[1:]
read = lambda name: open(f"{certs}/{name}", "rb").read()
channel = grpc.secure_channel(server, grpc.ssl_channel_credentials(read("ca.pem"), read("node.key"), read("node.pem")))
call = channel.stream_stream("/forepack.cluster.v1.Cluster/Attach")
try:
    for _ in call(iter([payload]), timeout=60, metadata=[("authorization", "Bearer " + t) for t in token]):
        pass
except grpc.RpcError as error:
    print(error.code().name, error.details())
PYTHON
}
expect_attach() { # expect_attach PATTERN SERVER [TOKEN]
    local answer
    answer=$(attach "${@:2}")
    [[ $answer == $1 ]] || fail "Attach: expected '$1', got '$answer'"
}
expect_attach "UNAUTHENTICATED this router asks for a cluster token*" "$node_server"
expect_attach "UNAUTHENTICATED the cluster token is not this router's*" "$node_server" "a-secret-of-enough-characterS"
expect_attach "INVALID_ARGUMENT the message is not a valid NodeMessage" "$node_server" "a-secret-of-enough-characters"
PAYLOAD=results expect_attach "INVALID_ARGUMENT the first message has * bytes: must be a Hello of at most 65536 bytes" "$node_server" "a-secret-of-enough-characters"
expect_attach "UNIMPLEMENTED *" "$server" "a-secret-of-enough-characters" # clients cannot attach

start foreign "${worker[@]}" --cluster-token-file "$work/token" --node-tls-ca "$certs/ca.pem" \
    --node-tls-cert "$certs/foreign/node.pem" --node-tls-key "$certs/foreign/node.key"
start stranger "${worker[@]}" "${mine[@]}"
start wrong "${worker[@]}" "${mine[@]}" --cluster-token-file "$work/node-token" --node-id mended
wait_until 60 "a foreign certificate is refused" grep -q "router_unreachable .*another client certificate" "$work/foreign.log"
wait_until 60 "a node without token is refused" grep -q "router_refused .*asks for a cluster token" "$work/stranger.log"
refused_thrice() { [ "$(grep -c "router_refused .*the cluster token is not this router's" "$work/wrong.log")" -ge 3 ]; }
wait_until 60 "a node with a wrong token is refused three times" refused_thrice
equal 0 "$(grep -c "node_refused node=" "$work/router.log" || true)" "Hellos of refused nodes that were read"
cat "$work/token" >"$work/node-token"
wait_until 60 "the node attaches with the right token" ready
equal '["mended"]' "$(status_json | jq -c '[.nodes[].node_id]')" "attached nodes"
"$bin/forepack" generate --server "$server" --tls-ca "$certs/ca.pem" --prompt Hello --max-tokens 2 >/dev/null
code=0
"$bin/forepack" generate --server "$server" --prompt Hello >/dev/null 2>"$work/plain" || code=$?
equal 1 "$code" "exit code of a client without TLS"
grep -q "does it want TLS" "$work/plain" || fail "a client without TLS is not told why: $(cat "$work/plain")"

https() { /usr/bin/python3 -c "
import ssl, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2])).status)" "$1" "$certs/ca.pem"; }
equal 200 "$(https "https://127.0.0.1:$http_port/ready")" "the HTTP API with TLS"
! https "http://127.0.0.1:$http_port/ready" 2>/dev/null || fail "the HTTP API answers without TLS"

# A changed token: the attached node stays, new nodes need the new token.
(umask 077; echo "the-second-secret-of-the-cluster" >"$work/new" && mv "$work/new" "$work/token")
expect_attach "UNAUTHENTICATED *" "$node_server" "a-secret-of-enough-characters"
expect_attach "INVALID_ARGUMENT *" "$node_server" "the-second-secret-of-the-cluster"
ready || fail "the attached node was lost with the old token"
for secret in "$work"/*token; do
    ! grep -qrF "$(cat "$secret")" "$work"/*.log || fail "a log shows the secret of ${secret##*/}"
done
kill -TERM "$router_pid"
wait "$router_pid" || fail "the router did not drain"

# --- a pinned model

choose_ports
start pinned "$bin/forepack-router" --model "$main_model" "${listen[@]}" --model-fingerprint 00000000deadbeef
start other "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "another model is refused" grep -q "router_refused .*is not the one that the router accepts (00000000deadbeef)" "$work/other.log"
echo "node_identity: all passed"
