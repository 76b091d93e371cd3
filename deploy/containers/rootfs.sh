#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hooks of mmdebstrap for deploy/containers/build.sh.
# Usage: rootfs.sh user ROOT                            adds the user of the image before the packages come
#        rootfs.sh finish ROOT ROLE VERSION CUDA_FOLDER removes what differs between builds, writes the list of packages
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=$2

add_user() {
    # The package's own user would get a number that depends on the order of installation. With bash, mpirun wants
    # orted alone on another host; with another shell it adds commands.
    echo 'forepack:x:10001:' >>"$target/etc/group"
    echo 'forepack:x:10001:10001:Forepack:/tmp:/bin/bash' >>"$target/etc/passwd"
}

# The list of packages in SPDX's form, from dpkg's database. Its date is that of all files.
write_sbom() { # write_sbom ROLE VERSION
    local list
    list=$(dpkg-query --admindir="$target/var/lib/dpkg" -W -f '${Package}\t${Version}\t${Architecture}\n' | LC_ALL=C sort)
    mkdir -p "$target/usr/share/forepack"
    jq -nR --arg role "$1" --arg version "$2" --arg created "$(date -ud "@$SOURCE_DATE_EPOCH" +%FT%TZ)" \
        --arg namespace "https://forepack.invalid/sbom/$1-$2-$(sha256sum <<<"$list" | cut -c 1-16)" \
        --arg llguidance "$(sed -n 's/^llguidance==\([0-9.]*\).*/\1/p' "$here/../llguidance.txt")" \
        --argjson has_llguidance "$([ -e "$target/usr/lib/forepack/libllguidance.so" ] && echo true || echo false)" '
        def package($name; $version; $purl): {SPDXID: ("SPDXRef-" + ($name | gsub("[^A-Za-z0-9.-]"; "-"))), name: $name,
            versionInfo: $version, downloadLocation: "NOASSERTION", filesAnalyzed: false, licenseConcluded: "NOASSERTION",
            licenseDeclared: "NOASSERTION", copyrightText: "NOASSERTION",
            externalRefs: [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl", referenceLocator: $purl}]};
        [inputs | split("\t") | package(.[0]; .[1]; "pkg:deb/debian/\(.[0])@\(.[1] | @uri)?arch=\(.[2])")] as $debian |
        (if $has_llguidance then [package("llguidance"; $llguidance; "pkg:pypi/llguidance@\($llguidance)")] else [] end) as $more |
        ($debian + $more) as $packages |
        {spdxVersion: "SPDX-2.3", dataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", name: "forepack-\($role)-\($version)",
         documentNamespace: $namespace, creationInfo: {created: $created, creators: ["Tool: deploy/containers/build.sh"]},
         packages: $packages, relationships: [$packages[] | {spdxElementId: "SPDXRef-DOCUMENT",
         relationshipType: "DESCRIBES", relatedSpdxElement: .SPDXID}]}' <<<"$list" >"$target/usr/share/forepack/sbom.spdx.json"
}

add_cuda_libraries() { # add_cuda_libraries FOLDER
    local pattern
    mkdir -p "$target/usr/lib/forepack/nvidia"
    for pattern in 'libcublasLt.so.*' 'libcublas.so.*' 'libcudart.so.*' 'libnccl.so.2*'; do
        compgen -G "$1/$pattern" >/dev/null || { echo "--cuda $1: has no $pattern" >&2; exit 1; }
        cp -a "$1"/$pattern "$target/usr/lib/forepack/nvidia/"
    done
    echo /usr/lib/forepack/nvidia >"$target/etc/ld.so.conf.d/forepack-nvidia.conf"
    chroot "$target" ldconfig
}

finish() { # finish ROLE VERSION CUDA_FOLDER
    [ "$1" != worker ] || install -Dm755 "$here/forepack-group" "$target/usr/lib/forepack/forepack-group"
    [ -z "$3" ] || case $1 in speculator | worker) add_cuda_libraries "$3" ;; esac
    write_sbom "$1" "$2"
    # Caches with times of this build, and what nobody calls in a container. Other users than the
    # image's need no entry in passwd, but they must be able to read.
    rm -rf "$target"/var/cache/ldconfig/aux-cache "$target"/var/cache/debconf/*-old \
        "$target"/var/lib/dpkg/*-old "$target"/var/log/* "$target"/var/lib/apt/lists/* "$target"/var/cache/apt/*.bin \
        "$target"/etc/apt/sources.list.d/* "$target"/etc/machine-id "$target"/etc/systemd/system/*
    : >"$target/etc/apt/sources.list"
    : >"$target/etc/hostname"
    chmod 0755 "$target/etc/forepack" 2>/dev/null || true
    find "$target" -xdev \( -path "$target/proc" -o -path "$target/sys" -o -path "$target/dev" \) -prune -o -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

case $1 in
user) add_user ;;
finish) finish "$3" "$4" "${5:-}" ;;
esac
