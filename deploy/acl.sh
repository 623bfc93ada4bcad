#!/bin/sh
# Prints the broker's users: acl.sh portal PASSWORD, or acl.sh node NAME PASSWORD.
# Append the line to Redis' or Valkey's users.acl, then: ACL LOAD.
#
# A node reads its own queue and appends to its own three streams; the name of a
# stream is what the portal believes, so no node may write another's. It may also
# read which Gpus' pages are open (telemetry.watched.*), and set none of that.
set -eu
fail() { printf 'acl: %s\n' "$*" >&2; exit 1; }
hash_of() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }

case ${1:-} in
portal)
    [ $# = 2 ] || fail "usage: acl.sh portal PASSWORD"
    printf 'user portal on #%s ~* &* +@all -@admin -@dangerous +info\n' "$(hash_of "$2")"
    ;;
node)
    [ $# = 3 ] || fail "usage: acl.sh node NAME PASSWORD"
    name=$2
    case $name in *[!A-Za-z0-9_-]* | '') fail "a node's name has letters, digits, - and _ only" ;; esac
    printf 'user node-%s on #%s resetchannels' "$name" "$(hash_of "$3")"
    for key in "node.$name" "_kombu.binding.node.$name" \
        "_kombu.binding_permanent.node.$name" "unacked.$name" \
        "unacked_index.$name" "unacked_mutex.$name"; do
        printf ' ~%s' "$key"
    done
    for stream in "raw.$name" "facts.$name" "log.$name"; do
        printf ' ~%s' "$stream"
    done
    printf ' %%R~telemetry.watched.*'
    printf ' -@all +auth +hello +ping +select +quit +@transaction +info'
    printf ' +client|setinfo +client|setname'
    # What kombu's Redis transport and a stream's writer use, and nothing else.
    printf ' +brpop +rpop +lpush +rpush +llen +sadd +srem +smembers +exists +del'
    printf ' +hset +hget +hdel +zadd +zrem +zrange +zrangebyscore +zrevrangebyscore'
    printf ' +set +get +mget +pexpire +eval +evalsha +script|load +xadd\n'
    ;;
*)
    fail "usage: acl.sh portal PASSWORD | acl.sh node NAME PASSWORD"
    ;;
esac
