# shellcheck shell=bash
# Packages of another suite of Debian, unpacked somewhere and not installed. To be sourced; wants $cache, a directory for lists and
# state, and die().

# apt with sources, lists and state of its own.
prepare_apt() { # SUITE
    apt_dir="$cache/apt-$1"
    mkdir -p "$apt_dir"/{lists/partial,archives/partial,sources,preferences}
    : >"$apt_dir/status"
    cat >"$apt_dir/sources/debian.sources" <<EOF
Types: deb
URIs: http://deb.debian.org/debian
Suites: $1
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
    cat >"$apt_dir/apt.conf" <<EOF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt_dir/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$apt_dir/preferences";
Dir::State::lists "$apt_dir/lists";
Dir::State::status "$apt_dir/status";
Dir::Cache "$apt_dir";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Sandbox::User "root";
EOF
    export APT_CONFIG="$apt_dir/apt.conf"
    apt-get update -q >"$apt_dir/log" 2>&1 || { cat "$apt_dir/log" >&2; die "apt-get update failed"; }
}

# Fetches packages into this directory and unpacks them.
unpack() { # ROOT PACKAGE...
    local root=$1 deb
    shift
    apt-get download -q "$@" >"$apt_dir/log" 2>&1 || { cat "$apt_dir/log" >&2; die "apt-get download failed"; }
    for deb in *.deb; do dpkg-deb -x "$deb" "$root"; done
}
