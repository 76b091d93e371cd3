#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds one image for each role from the Debian packages of Forepack (deploy/debian/build.sh) and from Debian. Needs root,
# mmdebstrap, buildah and dpkg-dev. Two builds with the same packages give the same content.
# Usage: deploy/containers/build.sh [options]
#   --packages DIR     the packages of Forepack (default build/release/packages)
#   --roles LIST       of router, speculator, worker, client (default: all four)
#   --tag TAG          tag of the images localhost/forepack-ROLE (default latest)
#   --cuda DIR         speculator and worker with the CUDA backend, tag TAG-cuda; DIR has libcublasLt.so.*, libcublas.so.*,
#                      libcudart.so.* and libnccl.so.2 of NVIDIA, whose licence you accept
#   --mirror URL       mirror of Debian (default: that of this host)
#   --rootfs DIR       also keeps DIR/ROLE.tar, the content of each image
#   --storage OPTION   option of buildah for all calls, such as --storage-driver=vfs; may be repeated
# SOURCE_DATE_EPOCH is the date of all files (default: that of the last commit).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/deploy/containers

packages=$root/build/release/packages roles="router speculator worker client" tag=latest cuda='' mirror='' rootfs=''
buildah=(buildah)
while [ $# -gt 0 ]; do
    case $1 in
    --packages | --roles | --tag | --cuda | --mirror | --rootfs | --storage)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        if [ "$1" = --storage ]; then buildah+=("$2"); else printf -v "${1#--}" %s "$2"; fi
        shift 2
        ;;
    --help) sed -n '3,15s/^# //p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
for tool in mmdebstrap buildah dpkg-scanpackages jq; do
    command -v $tool >/dev/null || { echo "$tool is not installed (deploy/packages.sh --deploy)" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "run it as root: mmdebstrap makes files of other users" >&2; exit 1; }
compgen -G "$packages/forepack-common_*.deb" >/dev/null || {
    echo "--packages '$packages': has no forepack-common_*.deb (deploy/debian/build.sh makes it)" >&2
    exit 2
}
for role in $roles; do
    case $role in router | speculator | worker | client) ;; *) echo "--roles: there is no role '$role'" >&2; exit 2 ;; esac
done

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
revision=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
suite=bookworm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "$rootfs" ] || mkdir -p "$rootfs"

# A repository of the packages, from which apt resolves dependencies.
mkdir "$work/repository"
cp "$packages"/forepack*.deb "$work/repository/"
(cd "$work/repository" && dpkg-scanpackages --multiversion . 2>/dev/null >Packages)
chmod -R a+rX "$work"
version=$(dpkg-deb -f "$(compgen -G "$packages/forepack-common_*.deb" | head -n 1)" Version)

host_mirror() {
    local found
    found=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 2>/dev/null | awk '$2 == "'$suite'" { print $1; exit }')
    [ -n "$found" ] || { echo "apt has no source of Debian $suite: give one with --mirror" >&2; return 1; }
    echo "$found"
}
mirror=${mirror:-$(host_mirror)}

# Prints the Debian packages of a role. libpython has symbols that llguidance needs; the client fetches models.
debian_packages() {
    case $1 in
    router) echo forepack-router libpython3.11 ;;
    speculator) echo forepack-speculator openmpi-bin ;;
    worker) echo forepack-worker libpython3.11 openmpi-bin procps ;;
    client) echo forepack-client curl jq ;;
    esac
    [ "$1" != client ] || echo forepack-common
    case $1 in speculator | worker) [ -z "$cuda" ] || echo forepack-cuda ;; esac
}

make_rootfs() { # make_rootfs ROLE FILE
    local include
    include=$(debian_packages "$1" | tr ' \n' ',,' | sed 's/,$//')
    mmdebstrap --quiet --variant=apt --include="usr-is-merged,ca-certificates,systemd-standalone-sysusers,$include" \
        --aptopt='APT::Sandbox::User "root"' --aptopt='APT::Install-Recommends "false"' \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --essential-hook="$here/rootfs.sh user \"\$1\"" \
        --customize-hook="$here/rootfs.sh finish \"\$1\" $1 $version '${cuda:+$(realpath -m "$cuda")}'" \
        $suite "$2" "deb $mirror $suite main" "deb $mirror $suite-updates main" "deb [trusted=yes] copy:$work/repository ./"
}

make_image() { # make_image ROLE ROOTFS
    local name=localhost/forepack-$1:$tag container
    local -a config=(
        --user 10001:10001 --workingdir / --stop-signal SIGTERM
        --env HOME=/tmp --env PATH=/usr/bin:/usr/sbin:/bin:/sbin
        --label "org.opencontainers.image.title=forepack-$1"
        --label "org.opencontainers.image.description=Forepack, LLM serving cluster: $1"
        --label "org.opencontainers.image.version=$version"
        --label "org.opencontainers.image.revision=$revision"
        --label "org.opencontainers.image.licenses=Apache-2.0"
        --label "org.opencontainers.image.created=$(date -ud "@$SOURCE_DATE_EPOCH" +%FT%TZ)"
    )
    case $1 in
    client) config+=(--entrypoint '["/usr/bin/forepack"]' --cmd '["--help"]') ;;
    *) config+=(--entrypoint "[\"/usr/bin/forepack-$1\"]" --cmd '["--help"]') ;;
    esac
    case $1 in router) config+=(--port 8000 --port 50051 --port 50052) ;; esac
    if [ -n "$cuda" ] && [[ $1 = speculator || $1 = worker ]]; then
        name+=-cuda
        config+=(--env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=compute,utility)
    fi
    container=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add --quiet "$container" "$2" / >/dev/null
    "${buildah[@]}" config "${config[@]}" "$container"
    "${buildah[@]}" commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$container" "$name" >/dev/null
    echo "$name $(stat -c %s "$2") bytes, sha256 $(sha256sum <"$2" | cut -d ' ' -f 1)"
}

for role in $roles; do
    make_rootfs "$role" "$work/$role.tar"
    make_image "$role" "$work/$role.tar"
    if [ -n "$rootfs" ]; then mv "$work/$role.tar" "$rootfs/"; else rm "$work/$role.tar"; fi
done
