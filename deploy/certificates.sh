#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes certificates for a cluster, signed by their own authority. Needs openssl.
# Usage: deploy/certificates.sh [--days N] DIR NAME[=HOST,...]...
#   DIR      DIR/ca.pem and DIR/ca.key, the authority, are made unless they exist
#   NAME     DIR/NAME.pem and DIR/NAME.key: the certificate of a program or person and its private key. Existing files
#            are replaced; a running router uses the new files for new connections
#   HOST     host name or address at which clients reach the program, for programs that listen
#   --days   validity of the new certificates, default 90; the authority is valid for ten years
# Example: deploy/certificates.sh nodes router=router.example.org,10.0.0.5 node
set -euo pipefail

days=90
if [ "${1-}" = --days ]; then
    days=${2:?--days: must be a number of days}
    shift 2
fi
if [ $# -lt 2 ] || [ "${1#-}" != "$1" ]; then
    sed -n '3,11s/^# \{0,1\}//p' "$0"
    [ "${1-}" = --help ] && exit 0 || exit 2
fi
command -v openssl >/dev/null || { echo "openssl is not installed: apt-get install openssl" >&2; exit 1; }

dir=$1
shift
umask 077
quiet() { local log; log=$("$@" 2>&1) || { echo "$log" >&2; return 1; }; }
mkdir -p "$dir"
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

if [ ! -e "$dir/ca.pem" ]; then
    quiet openssl req -x509 "${key[@]}" -keyout "$dir/ca.key" -out "$dir/ca.pem" -days 3650 -subj "/CN=Forepack authority" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
    chmod 644 "$dir/ca.pem"
fi

for subject; do
    name=${subject%%=*}
    case $name in
    '' | ca | */*) echo "$subject: NAME must not be empty or ca, or contain /" >&2; exit 2 ;;
    esac
    hosts=
    if [ "$name" != "$subject" ]; then
        for host in $(tr ',' ' ' <<<"${subject#*=}"); do
            case $host in
            *:*) kind=IP ;; # IPv6
            *[!0-9.]*) kind=DNS ;;
            *) kind=IP ;;
            esac
            hosts+=${hosts:+,}$kind:$host
        done
    fi
    quiet openssl req "${key[@]}" -keyout "$dir/$name.key.new" -out "$dir/$name.csr" -subj "/CN=$name"
    quiet openssl x509 -req -in "$dir/$name.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial \
        -days "$days" -out "$dir/$name.pem.new" \
        -extfile <(printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n'
                   printf 'extendedKeyUsage=serverAuth,clientAuth\n'
                   [ -z "$hosts" ] || printf 'subjectAltName=%s\n' "$hosts")
    rm "$dir/$name.csr"
    chmod 644 "$dir/$name.pem.new"
    mv "$dir/$name.key.new" "$dir/$name.key"
    mv "$dir/$name.pem.new" "$dir/$name.pem"
done
