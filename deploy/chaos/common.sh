# SPDX-License-Identifier: Apache-2.0
# Common part of the scripts in this folder: options, the load beside the fault, the report. A platform's script sources it,
# defines plant_FAULT and, for faults that last, heal_FAULT, and calls chaos_main.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
url=http://127.0.0.1:8000 streams=8 tokens=200 hold=10 report='' key='' ca='' server=127.0.0.1:50051 targets=() healing='' load=''

usage() {
    cat <<END
Plants one fault on ${platform:?} while clients send requests, and prints what they saw.
Usage: deploy/chaos/${0##*/} FAULT [--target T]... [options]
$faults
  --url URL           HTTP address of the router (default $url)
  --for S             seconds that a fault lasts, or that the load goes on after it (default $hold)
  --streams N         streams at the same time (default $streams), of --tokens N tokens (default $tokens)
  --api-key-file F    API key of the clients; --tls-ca F: authority of the router's certificate
  --server HOST:PORT  gRPC address of the router, for roll of processes (default $server)
  --json F            writes the report as JSON
END
}
wrong() {
    echo "${0##*/}: $*" >&2
    exit 2
}
failed() {
    echo "${0##*/}: $*" >&2
    exit 1
}

parse() {
    [ $# -gt 0 ] || wrong "a fault is missing (--help lists all)"
    [ "$1" != --help ] || { usage; exit 0; }
    fault=$1
    [[ $fault =~ ^[a-z]+$ ]] && declare -F "plant_$fault" >/dev/null || wrong "there is no fault '$fault' (--help lists all)"
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --target | --url | --for | --streams | --tokens | --api-key-file | --tls-ca | --server | --json)
            [ $# -gt 1 ] || wrong "$1: needs a value"
            ;;
        --help) usage; exit 0 ;;
        *) wrong "unknown option '$1' (--help lists all)" ;;
        esac
        case $1 in
        --target) targets+=("$2") ;;
        --url) url=${2%/} ;;
        --for) hold=$2 ;;
        --streams) streams=$2 ;;
        --tokens) tokens=$2 ;;
        --api-key-file) key=$2 ;;
        --tls-ca) ca=$2 ;;
        --server) server=$2 ;;
        --json) report=$2 ;;
        esac
        shift 2
    done
    local value
    for value in "for $hold" "streams $streams" "tokens $tokens"; do
        [[ ${value#* } =~ ^[1-9][0-9]{0,5}$ ]] || wrong "--${value% *} '${value#* }': must be a whole number of at least 1"
    done
    [ -z "$key" ] || [ -r "$key" ] || wrong "--api-key-file '$key': cannot be read"
    [ -z "$ca" ] || [ -r "$ca" ] || wrong "--tls-ca '$ca': cannot be read"
    [ ${#targets[@]} -gt 0 ] || wrong "--target is missing"
    [ ${#targets[@]} = 1 ] || [ "$fault" = roll ] || wrong "--target: $fault takes one"
}


wait_for() { # wait_for SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || failed "waited too long until $what"
        sleep 0.2
    done
}

heal() {
    [ -n "$healing" ] || return 0
    healing=
    heal_"$fault"
}
end_chaos() {
    local status=$?
    set +e
    heal
    [ -z "$load" ] || kill -TERM "$load" 2>/dev/null
    wait
    rm -rf "$scratch"
    exit $status
}

answers() { [ "$(curl -s --max-time 5 ${ca:+--cacert "$ca"} -o /dev/null -w '%{http_code}' "$url/ready")" = 200 ]; }

chaos_main() {
    parse "$@"
    declare -F "check_$fault" >/dev/null && "check_$fault"
    scratch=$(mktemp -d)
    trap end_chaos EXIT
    answers || failed "$url/ready: the cluster is not ready"
    python3 "$here/load.py" --url "$url" --streams "$streams" --tokens "$tokens" ${key:+--api-key-file "$key"} ${ca:+--tls-ca "$ca"} \
        ${report:+--json "$report"} >"$scratch/load" 2>&1 &
    load=$!
    is_calm() { grep -q '^calm' "$scratch/load" || ! kill -0 $load 2>/dev/null; }
    wait_for 600 "all prompts are answered in calm" is_calm
    kill -0 $load 2>/dev/null || failed "$(tail -n 1 "$scratch/load")"
    echo "fault: $fault of ${targets[*]}"
    healing=
    ! declare -F "heal_$fault" >/dev/null || healing=1
    plant_"$fault"
    sleep "$hold"
    [ -z "$healing" ] || echo "healed after $hold s"
    heal
    wait_for 600 "the cluster is ready again" answers
    kill -TERM $load
    local code=0
    wait $load || code=$?
    load=
    grep -v '^calm' "$scratch/load"
    return $code
}

# ---- faults of files, the same on all platforms: the target is a path on this host ----

check_disk() {
    [ -d "${targets[0]}" ] && [ -w "${targets[0]}" ] || wrong "--target '${targets[0]}': must be a folder to write to"
    [ "$(stat -c %d "${targets[0]}")" != "$(stat -c %d /)" ] || wrong "--target '${targets[0]}': is on the root file system"
}
plant_disk() { dd if=/dev/zero of="${targets[0]}/.chaos-fill" bs=64k 2>/dev/null || true; }
heal_disk() { rm -f "${targets[0]}/.chaos-fill"; }

check_certificate() {
    local pem=${targets[0]}
    [ -r "$pem" ] || wrong "--target '$pem': cannot be read"
    [[ $pem = *.pem ]] && [ -r "${pem%.pem}.key" ] || wrong "--target '$pem': must be NAME.pem, next to NAME.key"
    [ -r "$(dirname "$pem")/ca.key" ] || wrong "--target '$pem': the folder must have ca.pem and ca.key (deploy/certificates.sh)"
}
# Signs the same key and names again, valid for so many seconds: the router refuses to load one that has expired.
VALID_S=5
plant_certificate() {
    local pem=${targets[0]} folder
    folder=$(dirname "$pem")
    cp -p "$pem" "$scratch/valid.pem"
    cp -p "$pem" "$pem.new"
    : >"$scratch/index"
    cat >"$scratch/ca.conf" <<END
[ca]
default_ca = own
[own]
database = $scratch/index
new_certs_dir = $scratch
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copyall
[any]
commonName = supplied
END
    openssl x509 -x509toreq -copy_extensions copyall -in "$pem" -signkey "${pem%.pem}.key" -out "$scratch/request" 2>/dev/null
    openssl ca -batch -notext -config "$scratch/ca.conf" -cert "$folder/ca.pem" -keyfile "$folder/ca.key" -startdate 20200101000000Z \
        -enddate "$(date -u -d "+$VALID_S seconds" +%Y%m%d%H%M%SZ)" -in "$scratch/request" -out "$pem.new" 2>"$scratch/openssl" ||
        failed "openssl signs no certificate: $(tail -n 1 "$scratch/openssl")"
    mv "$pem.new" "$pem"
    sleep $VALID_S
}
heal_certificate() {
    cp -p "$scratch/valid.pem" "${targets[0]}.new"
    mv "${targets[0]}.new" "${targets[0]}"
}
FILE_FAULTS="  disk        fills the file system of the folder T
  certificate replaces T, such as tls/router.pem of deploy/certificates.sh, by one that expires in use"
