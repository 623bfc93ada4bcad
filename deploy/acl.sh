#!/bin/sh
# Prints one user of the broker, for Redis 7.0 or newer or any Valkey:
#
#     acl.sh portal     what web, workers, beat and ingest sign in as
#     acl.sh admin      may change users and do nothing else (deploy/enroll)
#     acl.sh node NAME  what the worker of one node signs in as
#
# The password comes from the first line of the standard input. The line that is
# printed belongs into users.acl. With --setuser the output is a command for
# redis-cli instead: nothing needs a restart then. With --hash the standard input has
# the SHA-256 of the password in place of the password.
#
# A node may do three things and nothing else: append to its own three streams, take
# from its own queue, and read which GPUs' pages are open (telemetry.watched.*). The
# name of a stream is what the portal believes, so no node may write another's. Each
# of the three is a selector, so that no command reaches the keys of another one.
set -eu
fail() { printf 'acl: %s\n' "$*" >&2; exit 2; }
usage="usage: acl.sh [--setuser] [--hash] portal | admin | node NAME, the password on standard input"

form='user %s %s\n'
if [ "${1:-}" = --setuser ]; then
    form='ACL SETUSER %s %s\n'
    shift
fi
hashed=
if [ "${1:-}" = --hash ]; then
    hashed=yes
    shift
fi
case ${1:-}:$# in
portal:1)
    user=portal
    may='~* &* +@all -@admin -@dangerous +info +acl|log +client|list +client|kill'
    ;;
admin:1)
    user=admin
    may='resetchannels -@all +auth +hello +ping +select +quit +client|setname'
    may="$may +acl|setuser +acl|deluser +acl|getuser +acl|list +acl|log +acl|save"
    may="$may +client|kill"
    ;;
node:2)
    name=$2
    case $name in
    *[!A-Za-z0-9_-]* | '' | [!A-Za-z0-9]*)
        fail "a node's name has letters, digits, - and _ only, and begins with a letter or a digit"
        ;;
    esac
    [ "${#name}" -le 63 ] || fail "a node's name has 63 characters at most"
    user=node-$name
    may='resetchannels -@all +auth +hello +ping +select +quit +client|setname'
    may="$may (~raw.$name ~facts.$name ~log.$name +xadd)"
    may="$may (~node.$name +brpop +rpop +llen)"
    may="$may (%R~telemetry.watched.* +mget)"
    ;;
*)
    fail "$usage"
    ;;
esac

[ ! -t 0 ] || printf 'password of %s: ' "$user" >&2
IFS= read -r password || [ -n "$password" ] || fail "no password on the standard input"
[ -n "$password" ] || fail "the password is empty"
if [ -n "$hashed" ]; then
    hash=$password
    case $hash in *[!0-9a-f]*) hash= ;; esac
    [ "${#hash}" = 64 ] || fail "a SHA-256 has 64 digits, 0 to 9 and a to f"
else
    hash=$(printf '%s' "$password" | sha256sum | cut -d ' ' -f 1)
fi
# shellcheck disable=SC2059
printf "$form" "$user" "reset on #$hash $may"
