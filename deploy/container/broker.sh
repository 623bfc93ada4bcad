#!/bin/sh
# The broker of the compose file: redis.conf.example with the places of its container.
# The users lie in the volume, because the broker adds those of nodes to them.
set -eu
[ -s /data/users.acl ] || cp /run/secrets/users.acl /data/users.acl
sed -e '/^bind /d' -e 's|/etc/gpuportal/tls/|/run/secrets/|' \
    -e 's|/etc/redis/users\.acl|/data/users.acl|' \
    /usr/share/gpuportal/redis.conf.example >/tmp/broker.conf
echo 'protected-mode no' >>/tmp/broker.conf
exec valkey-server /tmp/broker.conf
