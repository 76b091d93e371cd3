# SPDX-License-Identifier: Apache-2.0
# Functions of the tests in a booted systemd: a Debian root with the packages' dependencies, booted by systemd-nspawn.
# Sourced after tests/integration/lib.sh; expects FOREPACK_BUILD (build folder) and FOREPACK_SOURCE.

skip() {
    echo "skipped: $*"
    exit 77
}

machine_needs() {
    [ "$(id -u)" = 0 ] || skip "a machine needs root"
    local tool
    for tool in mmdebstrap systemd-nspawn nsenter lintian dh; do
        command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages.sh --deploy)"
    done
    unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow namespaces"
}

# machine_root FOLDER DEB...: a Debian root with systemd and all that the packages depend on, but without the packages. The
# build folder keeps it for the next run.
machine_root() {
    local folder=$1 names kept deb
    shift
    names=$(for deb; do dpkg-deb -f "$deb" Depends | tr ',' '\n'; done |
        sed -E 's/^ *([a-z0-9.+-]+).*/\1/' | grep -v '^forepack' | sort -u | paste -sd,)
    names+=,systemd-sysv,openmpi-bin,curl
    # shellcheck disable=SC1091
    kept=$FOREPACK_BUILD/deploy/root-$(. /etc/os-release && echo "$VERSION_CODENAME")-$(md5sum <<<"$names" | cut -c1-8).tar
    if [ ! -s "$kept" ]; then
        mkdir -p "${kept%/*}"
        # shellcheck disable=SC1091
        mmdebstrap --variant=minbase --include="$names" "$(. /etc/os-release && echo "$VERSION_CODENAME")" "${kept%.tar}-new.tar" \
            >"$work/mmdebstrap.log" 2>&1 || { tail -n 3 "$work/mmdebstrap.log"; skip "mmdebstrap made no Debian root"; }
        mv "${kept%.tar}-new.tar" "$kept"
    fi
    mkdir "$folder"
    tar -C "$folder" -xf "$kept"
}

# machine_boot FOLDER: starts the machine and waits until its systemd is up; `inside` runs commands in it.
machine_boot() {
    start machine systemd-nspawn --register=no --keep-unit --machine "forepack$$" --private-network -D "$1" --boot
    local nspawn=$last_pid
    machine_init() { init=$(pgrep -P "$nspawn"); }
    wait_until 20 "the machine has a first process" machine_init
    machine_up() {
        local state
        state=$(inside systemctl is-system-running) || true
        [ "$state" = running ] || [ "$state" = degraded ]
    }
    machine_ends() { ! kill -0 "$nspawn" 2>/dev/null; }
    machine_up_or_gone() { machine_up || machine_ends; }
    wait_until 60 "the machine is up" machine_up_or_gone
    machine_up || skip "systemd-nspawn cannot boot a machine here: $(tail -n 1 "$work/machine.log")"
    # The loopback of the machine's own network.
    inside ip link set lo up 2>/dev/null || true
}

inside() {
    nsenter -t "$init" --all -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
