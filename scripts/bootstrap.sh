#!/bin/bash
# Installs what a task of the Makefile needs: scripts/bootstrap.sh run|check|test|interop|bench|uv
#
# Python packages are installed into .venv, with the versions and hashes of requirements/*.lock, never into the system's
# Python. Debian packages are installed only if a program is missing, as root or with sudo (which prompts for a password
# only if there is a terminal). A repeated call takes a few milliseconds if nothing has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

task=${1:?usage: bootstrap.sh run|check|test|interop|bench|uv}
venv=.venv
tools=.cache/tools    # uv, if the host has none

say() { echo "bootstrap: $*" >&2; }
die() { say "$*"; exit 1; }

# --- Debian packages -------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
}

can_apt() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] && return
    command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }
}

apt_install() {
    say "installing $* (Debian)"
    # Without package lists, or with outdated ones that name deleted files, the first attempt fails: update, and retry.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
    as_root apt-get update -qq >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need PROGRAM PACKAGE…: installs the packages if the program is missing, or warns (tests that need it are skipped).
need() {
    local program=$1; shift
    command -v "$program" >/dev/null && return
    if can_apt; then
        apt_install "$@"
    else
        say "warning: $program is not installed; install the packages: $*"
    fi
}

# --- Python packages -------------------------------------------------------------------------------------------

# Sets $uv to a working uv: the host's, or one in .cache/tools that requirements/tools.lock pins.
find_uv() {
    uv=$(command -v uv || true)
    if [ -n "$uv" ] && "$uv" --version >/dev/null 2>&1; then return; fi
    uv=$tools/bin/uv
    [ -x "$uv" ] && return
    # Debian splits ensurepip from python3: a venv with pip needs the package python3-venv.
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        can_apt || die "python3-venv is not installed; run: apt-get install python3-venv"
        apt_install python3-venv
    fi
    say "installing uv into $tools"
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.lock
}

# The Python for .venv: $PYTHON if set; else the system's, which distributions build with optimizations (a broker serves
# an eighth more requests with Debian's Python than with one built without them); else one that uv finds.
chosen_python() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
    elif /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo /usr/bin/python3
    else
        echo '>=3.11'
    fi
}

fingerprint() {
    cat "$1" pyproject.toml | sha256sum | cut -d' ' -f1
}

# python_packages run|dev: installs the packages of that lock and headrace in editable mode. The dev lock contains the
# run lock, so the stamp of dev is valid for both.
python_packages() {
    local lock=requirements/$1.lock mark wanted
    mark=$venv/.installed-$1
    wanted=$(fingerprint "$lock")
    [ "$(cat "$mark" 2>/dev/null)" = "$wanted" ] && return
    if [ "$1" = run ] && [ "$(cat "$venv/.installed-dev" 2>/dev/null)" = "$(fingerprint requirements/dev.lock)" ]; then
        return
    fi
    find_uv
    [ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$(chosen_python)" "$venv"
    say "installing the $1 packages into $venv"
    VIRTUAL_ENV=$PWD/$venv "$uv" pip install --quiet --compile-bytecode --require-hashes -r "$lock"
    # pip has no hashes for editable installs. The build backend is in the lock, so this step downloads nothing.
    VIRTUAL_ENV=$PWD/$venv "$uv" pip install --quiet --no-deps --no-build-isolation --offline -e .
    echo "$wanted" >"$mark"
}

# Some hosts disable writing of bytecode but still read it, and a node starts twice as fast with it.
compile_own_modules() {
    "$venv/bin/python" -m compileall -q src/headrace
}

# --- tasks -----------------------------------------------------------------------------------------------------

mkdir -p .cache
exec 9>.cache/bootstrap.lock
flock 9    # concurrent tasks must not build the same .venv

case $task in
uv)    # for scripts/lock.sh: prints the path of a uv
    find_uv
    echo "$uv" ;;
run)
    python_packages run
    need java openjdk-17-jre-headless ;;
check)
    python_packages dev ;;
test)
    python_packages dev
    need kcat kcat
    need java openjdk-17-jre-headless
    need etcd etcd-server
    need openssl openssl
    need promtool prometheus ;;
interop)
    python_packages dev
    need kcat kcat
    need etcd etcd-server
    need javac openjdk-17-jdk-headless
    need mvn maven openjdk-17-jdk-headless ;;
bench)
    python_packages dev
    need java openjdk-17-jre-headless
    need mvn maven openjdk-17-jre-headless
    need gcc gcc libc6-dev
    need wrk wrk
    need etcd etcd-server
    need curl curl
    [ -e /usr/include/librdkafka/rdkafka.h ] || { can_apt && apt_install librdkafka-dev; } ;;
*)
    die "unknown task $task" ;;
esac

[ "$task" = uv ] || compile_own_modules
