# SPDX-License-Identifier: Apache-2.0
# Sourced after lib.sh and choose_ports by tests that put proxies before a router. ${http_at[nginx]} and
# ${grpc_at[haproxy]} are ports of the proxies.
declare -A http_at grpc_at

# configure NAME SILENCE <FILE: the configuration with the ports of this test, and SILENCE as the longest silence
configure() {
    sed -e "s/\\b8080\\b/${http_at[$1]}/; s/\\b8081\\b/${grpc_at[$1]}/" \
        -e "s/127.0.0.1:8000/127.0.0.1:$http_port/; s/127.0.0.1:50051/$server/" -e "s/\\b1h\\b/$2/"
}

proxies_clean_up() {
    local status=$?
    rm -rf "$proxy_folder"
    set +e
    (exit $status) # clean_up reads it
    clean_up
}

# start_proxies SILENCE: starts nginx and HAProxy with the configurations of deploy/proxy.
start_proxies() {
    local proxy
    for proxy in nginx haproxy; do
        http_at[$proxy]=$(free_port)
        grpc_at[$proxy]=$(free_port)
        while [ "${grpc_at[$proxy]}" = "${http_at[$proxy]}" ]; do grpc_at[$proxy]=$(free_port); done
    done
    local folder
    folder=$(mktemp -d /tmp/forepack-proxy.XXXXXX) # nginx takes no path with a blank
    proxy_folder=$folder
    trap proxies_clean_up EXIT
    configure nginx "$1" <"$source_dir/deploy/proxy/nginx.conf" >"$folder/forepack.conf"
    {
        [ "$(id -u)" != 0 ] || echo "user root;"
        echo "daemon off; pid $folder/pid; error_log stderr; events {}"
        echo "http { access_log off; include $folder/forepack.conf;"
        for proxy in client_body proxy fastcgi uwsgi scgi; do echo "${proxy}_temp_path $folder/$proxy;"; done
        echo "}"
    } >"$folder/nginx.conf"
    configure haproxy "$1" <"$source_dir/deploy/proxy/haproxy.cfg" >"$folder/haproxy.cfg"
    haproxy -c -q -f "$folder/haproxy.cfg" || fail "HAProxy refuses deploy/proxy/haproxy.cfg"
    start nginx nginx -e stderr -c "$folder/nginx.conf"
    start haproxy haproxy -f "$folder/haproxy.cfg"
    for proxy in nginx haproxy; do wait_until 30 "$proxy answers" curl -sf "http://127.0.0.1:${http_at[$proxy]}/ready"; done
}
