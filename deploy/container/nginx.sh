#!/bin/sh
# Writes the proxy's settings from nginx.conf.example: the portal's name, the socket of
# the container web, the certificates of the secrets. nginx's image runs it at its start.
set -eu
sed -e "s/gpu\.example\.org/${PORTAL_NAME:?}/g" \
    -e 's|http://127\.0\.0\.1:8010|http://unix:/run/gpuportal/web.sock|' \
    -e 's|/etc/gpuportal/tls/|/run/secrets/|' \
    -e 's|/opt/gpuportal/deploy/pages|/usr/share/gpuportal/pages|' \
    "${NGINX_EXAMPLE:-/usr/share/gpuportal/nginx.conf.example}" \
    >"${NGINX_CONF:-/etc/nginx/conf.d/default.conf}"
