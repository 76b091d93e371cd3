#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the single package of version 0.1.0, which held all programs in /usr, from the programs of a build.
# Usage: old_package.sh BUILD FILE.deb
set -euo pipefail
build=$1 file=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

DESTDIR=$work/root cmake --install "$build" --prefix /usr >/dev/null
strip "$work"/root/usr/bin/*
mkdir "$work/root/DEBIAN"
cat >"$work/root/DEBIAN/control" <<END
Architecture: $(dpkg --print-architecture)
Depends: libgrpc29, libjansson4, libopenmpi3, libpcre2-8-0, libprotobuf-c1, libssl3, libutf8proc2, zlib1g
Description: A multi-node LLM serving cluster
Maintainer: The Forepack authors <forepack@localhost>
Package: forepack
Priority: optional
Recommends: openmpi-bin, libpython3.11 | libpython3.12 | libpython3.13
Section: net
Version: 0.1.0
END
dpkg-deb --root-owner-group -b "$work/root" "$file" >/dev/null
