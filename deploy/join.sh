#!/bin/sh
# Makes this machine a GPU node of the portal from which this file came:
#     curl -fsS https://gpu.example.org/join.sh | sudo sh
# It asks for the token of Manage, Pools, Add a machine. The token works once, for 15
# minutes. It is no argument, because all users of a machine can read the arguments of
# its processes. Options come after `sudo sh -s --`.
#
#     --token-file F  reads the token from a file (mode 600) and asks nothing
#     --print         only checks, and prints what would be done
#     --ca FILE       certificates (PEM) of the authority of the portal, or of a proxy
#     --no-driver     join although no NVIDIA driver answers
#     --folder DIR    where the code goes (/opt/gpuportal)
#     --settings DIR  where settings and secrets go (/etc/gpuportal)
#     --venv DIR      a virtual environment that has the packages already
#     --update        no token: the portal's present code, on a node that has joined
#
# The last part of the token is the pin: the beginning of the SHA-256 of the portal's
# signing key. Nothing that was downloaded runs or is unpacked before its sum was signed
# by that key. This file itself is protected by the portal's certificate only.
set -eu

# The portal writes its own address here.
portal=https://gpu.example.org

fail() { printf 'join: %s\n' "$*" >&2; exit 2; }
say() { printf '%s\n' "$*"; }
warn() { printf 'note: %s\n' "$*"; }

# Everything is in functions: a download that was cut off does nothing.
main() {
    token='' token_file='' ca='' driver=yes only_print='' update='' venv='' package=''
    folder=/opt/gpuportal settings=/etc/gpuportal
    while [ $# -gt 0 ]; do
        case $1 in
        --print) only_print=yes ;;
        --no-driver) driver='' ;;
        --update) update=yes ;;
        --ca | --folder | --settings | --token-file | --venv)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
            --ca) ca=$2 ;;
            --folder) folder=$2 ;;
            --settings) settings=$2 ;;
            --token-file) token_file=$2 ;;
            --venv) venv=$2 ;;
            esac
            shift
            ;;
        -*) fail "unknown option: $1" ;;
        *) fail "the token is no argument, because all users of this machine can read the arguments of its processes. If this was a token, make another one. Then type the line without it: it asks for the token. A program uses --token-file FILE" ;;
        esac
        shift
    done
    # The commands below run in other folders.
    [ -z "$ca" ] || ca=$(readlink -m -- "$ca")
    [ -z "$venv" ] || venv=$(readlink -m -- "$venv")
    folder=$(readlink -m -- "$folder") settings=$(readlink -m -- "$settings")
    umask 077
    work=$(mktemp -d)
    terminal=''
    trap clean_up EXIT
    trap 'exit 130' HUP INT TERM
    check_token
    check_machine
    greet
    if [ -n "$only_print" ]; then
        print_steps
        exit 0
    fi
    [ -n "$update" ] || bind_token
    install_code
    [ -z "$update" ] || { restart_updated; exit 0; }
    become_node
}

clean_up() {
    show_typing
    rm -rf "$work"
}

# The terminal shows what is typed, as it did before.
show_typing() {
    [ -z "$terminal" ] || stty "$terminal" </dev/tty
    terminal=''
}

# --- checks: nothing is changed ---------------------------------------------------

check_token() {
    case $portal in
    https://* | http://127.0.0.1:*) ;;
    *) fail "the portal's address is $portal: a node joins over https only" ;;
    esac
    if [ -n "$update" ]; then
        [ -r "$settings/node.token" ] || fail "this machine has not joined, or you are not root"
        openssl pkey -pubin -in "$settings/order_key.pub" -outform DER -out "$work/known.der"
        pin=$(sha256sum "$work/known.der" | cut -c 1-40)
        name=$(sed -n 's/^GPUPORTAL_NODE=//p' "$settings/node.env" | tail -n 1)
        # The worker renews the short token, which exists from its first proof on.
        shown=$settings/node.token
        [ ! -s "$shown.short" ] || shown=$shown.short
        credential="Node $name:$(cat "$shown")"
        return
    fi
    if [ -n "$token_file" ]; then
        read_token_file
    else
        ask_token
    fi
    # Exactly gpj1_ID.SECRET.PIN
    printf '%s\n' "$token" |
        grep -qE '^gpj1_[0-9a-f]{16}\.[A-Za-z0-9_-]{32}\.[0-9a-f]{40}$' ||
        fail "this is no join token. Copy the whole token from Manage, Pools, Add a machine"
    pin=${token##*.}
    credential=${token%.*}
    credential="Join ${credential#gpj1_}"
}

read_token_file() {
    [ -f "$token_file" ] && [ -r "$token_file" ] || fail "cannot read $token_file"
    mode=$(stat -L -c %a "$token_file")
    owner=$(stat -L -c %u "$token_file")
    [ "$owner" = "$(id -u)" ] || [ "$owner" = "${SUDO_UID:-}" ] ||
        fail "$token_file belongs to another user. Make another token, and write it to a file of your own"
    case $mode in
    [46]00) ;;
    *) fail "other users may read $token_file (mode $mode). Make another token, and write it to a file of mode 600" ;;
    esac
    IFS= read -r token <"$token_file" || [ -n "$token" ] || fail "$token_file is empty"
}

ask_token() {
    # The standard input is this script.
    terminal=$( (stty -g </dev/tty) 2>/dev/null) ||
        fail "there is no terminal that could ask for the token: use --token-file FILE"
    stty -echo </dev/tty
    printf 'Token of Manage, Pools, Add a machine (it is not shown): ' >/dev/tty
    IFS= read -r token </dev/tty || true
    show_typing
    printf '\n' >/dev/tty
}

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "a node runs Linux, this is $(uname -s)"
    if [ -z "$only_print" ] && [ "$settings" = /etc/gpuportal ] && [ "$(id -u)" != 0 ]; then
        fail "run it as root: sudo sh"
    fi
    missing=
    for tool in curl openssl tar gzip sha256sum; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    [ -z "$missing" ] || fail "missing:$missing. Install them: apt-get install curl openssl tar gzip coreutils"
    case $(openssl version) in
    OpenSSL\ [3-9]*) ;;
    *) fail "OpenSSL 3 is needed to check signatures, this is $(openssl version)" ;;
    esac
    python=
    for one in python3 python3.13 python3.12 python3.11; do
        if "$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$one
            break
        fi
    done
    [ -n "$python" ] || fail "Python 3.11 or newer is needed: apt-get install python3 python3-venv (Ubuntu 22.04: python3.11-venv)"
    [ -n "$venv" ] || "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python's venv module is missing: apt-get install python3-venv"
    [ -z "$venv" ] || [ -x "$venv/bin/python" ] || fail "$venv is not a virtual environment"
    say "ok    $("$python" --version), $(openssl version | cut -d ' ' -f 1-2)"

    if timeout 10 "$python" -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())' 2>/dev/null; then
        say "ok    an NVIDIA driver answers"
    elif [ -n "$driver" ]; then
        fail "no NVIDIA driver answers. Install it and start the machine again (nvidia-smi must work), or join with --no-driver"
    else
        warn "no NVIDIA driver answers"
    fi
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        say "ok    control groups version 2"
    else
        warn "no control groups version 2: jobs are isolated by user only. Start the kernel with systemd.unified_cgroup_hierarchy=1"
    fi

    if [ -e "$folder/.package" ]; then
        package="gpuportal-node $(cat "$folder/.package")"
        [ -z "$update" ] || fail "the code in $folder is that of the package $package: install a newer package"
        [ -x "$folder/.venv/bin/python" ] || fail "the package $package is not configured: dpkg --configure gpuportal-node"
        say "ok    the package $package is installed"
        venv=$folder/.venv
    fi
    at=$folder
    while [ ! -d "$at" ]; do at=$(dirname "$at"); done
    free_mib=$(($(df -Pk "$at" | awk 'NR == 2 {print $4}') / 1024))
    need_mib=6000
    [ -z "$venv" ] || need_mib=100
    [ "$free_mib" -ge "$need_mib" ] || fail "the disk is full: $free_mib MiB free in $at, $need_mib MiB needed"
    say "ok    $free_mib MiB free in $at"
    if [ -e "$folder" ] && [ ! -f "$folder/deploy/gpuportal-node" ] && [ ! -d "$folder/.old" ]; then
        fail "$folder exists and has something else: move it away, or use --folder"
    fi
    [ ! -e "$folder/.git" ] || fail "$folder is a checkout: use git there, and deploy/enroll and deploy/join (docs/operations.md)"

    bundle=/etc/ssl/certs/ca-certificates.crt
    [ -r "$bundle" ] || bundle=/etc/pki/tls/certs/ca-bundle.crt
    if [ -n "$ca" ]; then
        openssl x509 -in "$ca" -noout 2>/dev/null || fail "$ca is no certificate (PEM)"
        { [ ! -r "$bundle" ] || cat "$bundle"; cat "$ca"; } >"$work/issuers.pem"
        bundle=$work/issuers.pem
        export SSL_CERT_FILE="$bundle" PIP_CERT="$bundle" REQUESTS_CA_BUNDLE="$bundle"
    fi
}

# --- what the portal says -----------------------------------------------------------

# fetch PATH FILE: a request with the token. curl does not get the token as an argument.
fetch() {
    certificates=
    [ ! -r "$bundle" ] || certificates="cacert = \"$bundle\""
    status=$(printf 'header = "Authorization: %s"\n%s\n' "$credential" "$certificates" |
        curl -sS -K - --max-time 120 -o "$2" -w '%{http_code}' "$portal$1" 2>"$work/why") || {
        case $? in
        60 | 77) fail "the certificate of $portal is not trusted here. If your site has its own authority, give its certificate: --ca FILE ($(head -n 1 "$work/why"))" ;;
        *) fail "$portal cannot be reached from here: $(head -n 1 "$work/why")" ;;
        esac
    }
    case $status in
    200) ;;
    *)
        detail=$(sed -n 's/.*"detail": *"\([^"]*\)".*/\1/p' "$2" | head -n 1)
        fail "${detail:-the portal answered $status}"
        ;;
    esac
}

# The signed text FILE, as $work/text: its key is the pinned one, and signed it.
open_signed() {
    sed -n 's/^key //p' "$1" | openssl base64 -d -A >"$work/key.der"
    [ "$(sha256sum "$work/key.der" | cut -c 1-40)" = "$pin" ] ||
        fail "the portal's key is not the one of the token. Nothing was installed. Make another token, and ask who answers at $portal"
    sed -n 's/^signature //p' "$1" | openssl base64 -d -A >"$work/signature"
    sed '/^signature /d' "$1" >"$work/text"
    openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin \
        -in "$work/text" -sigfile "$work/signature" >/dev/null 2>&1 ||
        fail "the portal's key did not sign its answer. Nothing was installed"
}

# ask_portal NONCE MORE: the portal's signed greeting, as $work/text.
ask_portal() {
    fetch "/join/v1/greeting?nonce=$1$2" "$work/signed"
    open_signed "$work/signed"
    [ "$(head -n 1 "$work/text")" = "gpuportal-join-v1 greeting" ] &&
        [ "$(sed -n 's/^nonce //p' "$work/text")" = "$1" ] ||
        fail "the portal sent an older answer. Nothing was installed"
}

greet() {
    ask_portal "$(openssl rand -hex 16)" ''
    name=$(sed -n 's/^node //p' "$work/text")
    sum=$(sed -n 's/^code //p' "$work/text")
    there=$(sed -n 's/^time //p' "$work/text")
    here=$(date +%s)
    off=$((here > there ? here - there : there - here))
    [ "$off" -le 60 ] || fail "the clock is wrong: here it is $(date -u -d "@$here" '+%Y-%m-%d %H:%M:%S') UTC, on the portal $(date -u -d "@$there" '+%Y-%m-%d %H:%M:%S') UTC. Set it: timedatectl set-ntp true"
    say "ok    $portal answers, its key is the pinned one, the clock is at most $((off + 1)) s off"
}

# --- changes ----------------------------------------------------------------------

print_steps() {
    say
    say "Without --print this would"
    [ -n "$update" ] ||
        say "  - make the key $settings/node_key. The token works with this key only from then on"
    [ -n "$package" ] ||
        say "  - download $portal/join/v1/code/$sum.tar.gz, compare its SHA-256, unpack it into $folder"
    if [ -n "$package" ]; then
        say "  - use the code of the package $package"
    elif [ -n "$venv" ]; then
        say "  - use the packages of $venv"
    else
        say "  - make $folder/.venv and install the pinned packages of requirements.txt with pip (1 to 5 GB)"
    fi
    [ -z "$update" ] || { say "  - restart gpuportal-node. Running jobs continue"; return; }
    say "  - send the public part of the key, a hash of /etc/machine-id,"
    say "    the names of the GPUs, and versions of kernel, driver, Python and torch"
    say "  - write node.env, node.token and order_key.pub into $settings, mode 600"
    if [ "$settings" = /etc/gpuportal ]; then
        say "  - install, enable and start the unit gpuportal-node, which runs as root"
    else
        say "  - install no unit: you start the worker yourself"
    fi
    say "  - send the portal what gpuportal-node doctor finds"
}

# From here on the token works with this machine's key only. The packages take minutes.
bind_token() {
    mkdir -p -m 755 "$settings"
    key=$settings/node_key
    if [ ! -e "$key" ]; then
        openssl genpkey -algorithm ed25519 -out "$work/node_key" 2>/dev/null ||
            fail "openssl could not make a key"
        install -m 600 "$work/node_key" "$key"
    fi
    openssl pkey -in "$key" -pubout -outform DER -out "$work/public.der" 2>/dev/null ||
        fail "$key has no key: delete it, and join again"
    # An Ed25519 key in DER: 12 bytes that name the algorithm, then the 32 bytes of the key.
    [ "$(wc -c <"$work/public.der")" = 44 ] || fail "$key has a key of another kind"
    public=$(tail -c 32 "$work/public.der" | openssl base64 -A |
        sed 's/+/%2B/g; s|/|%2F|g; s/=/%3D/g')
    ask_portal "$(openssl rand -hex 16)" "&key=$public"
    say "ok    the token works with this machine's key only"
}

# The tree is unpacked beside the old one, so that no module of the old one is left.
# Packages, logs and locks stay where they are. The old tree stays in .old until the
# packages are installed.
unpack() {
    rm -rf .new &&
        mkdir -p .new .old &&
        tar -C .new -xzf "$1" --no-same-owner &&
        ls .new >"$work/parts" || return 1
    { cat "$work/parts" .parts 2>/dev/null || true; } | sort -u >"$work/all"
    while read -r part; do
        rm -rf ".old/$part" || return 1
        [ ! -e "$part" ] || mv "$part" .old/ || return 1
        [ ! -e ".new/$part" ] || mv ".new/$part" . || return 1
    done <"$work/all"
}

# Undoes what `unpack` did, as far as it went.
put_back() {
    for part in $(ls .old 2>/dev/null); do
        rm -rf "./$part" && mv ".old/$part" . || return 1
    done
}

install_packages() {
    if [ -n "$venv" ]; then
        [ -e .venv ] || ln -s "$venv" .venv
    else
        PYTHON=$python sh deploy/setup.sh node </dev/null
    fi
}

install_code() {
    [ -z "$package" ] || return 0
    say "      downloading the portal's code ..."
    fetch "/join/v1/code/$sum.tar.gz" "$work/code.tar.gz"
    [ "$(sha256sum "$work/code.tar.gz" | cut -d ' ' -f 1)" = "$sum" ] ||
        fail "the code is not the one that the portal signed. Nothing was installed"
    # Folders and files of the code are readable by the users whose jobs run.
    (
        umask 022
        mkdir -p "$folder" && cd "$folder" || exit 1
        unpack "$work/code.tar.gz" && install_packages || {
            put_back
            exit 1
        }
        cp "$work/parts" .parts && rm -rf .new .old
    ) || fail "the code could not be installed in $folder"
    say "ok    the code is in $folder"
}

restart_updated() {
    units=${GPUPORTAL_UNIT_DIR:-/etc/systemd/system}
    unit=$units/gpuportal-node.service
    [ -f "$unit" ] || { say "Now start the worker again."; return; }
    top=$(readlink -f "$folder")
    sed "s|/opt/gpuportal|$top|g" "$top/deploy/systemd/gpuportal-node.service" >"$work/unit"
    if [ "$(cat "$work/unit")" != "$(cat "$unit")" ]; then
        install -m 644 "$work/unit" "$unit"
        systemctl daemon-reload
        say "ok    $unit is the present one"
    fi
    systemctl restart gpuportal-node || fail "see: journalctl -u gpuportal-node -n 20"
    say "$name runs the portal's present code."
}

become_node() {
    cd "$folder"
    said=$(printf '%s\n' "$token" | .venv/bin/python -m gpuportal.node_join.join_client \
        --portal "$portal" --settings "$settings" --write "$work/node.tar" ${ca:+--ca "$ca"}) ||
        exit 2
    wait=
    [ "$said" = ready ] || wait=--no-wait
    GPUPORTAL_SETTINGS_DIR=$settings sh deploy/join $wait "$work/node.tar" >/dev/null ||
        fail "$name has joined and did not start. See: journalctl -u gpuportal-node -n 20"
    say "ok    $name has joined. Its settings are in $settings"
    [ -z "$wait" ] || warn "the broker has no user for $name yet. The page Manage, Pools, Add a machine shows the command for an admin on the portal's machine. $name starts after that command"
    GPUPORTAL_NODE_ENV_FILE=$settings/node.env deploy/gpuportal-node doctor --report || true
}

main "$@"
