# For the scripts of the tests: headings, and Debian packages where a tool is missing.
# shellcheck shell=bash

step() { printf "\n== %s (%d s)\n" "$*" "$SECONDS"; }

install() {
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq "$@"
}

# Takes command:package pairs and installs the packages whose command is missing.
need() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}
