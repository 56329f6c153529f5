#!/bin/sh
# What an image needs beside Python: an init, a user of its own, and a place for models.
set -eu

# tini forwards signals also while Python is still starting, when a process 1 without handlers would ignore them.
if ! command -v tini > /dev/null; then
    options=""
    if [ -n "${APT_MIRROR:-}" ]; then
        . /etc/os-release
        echo "deb $APT_MIRROR $VERSION_CODENAME main" > /tmp/mirror.list
        options="-o Dir::Etc::SourceList=/tmp/mirror.list -o Dir::Etc::SourceParts=-"
    fi
    apt-get $options update
    apt-get $options install --yes --no-install-recommends tini
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /tmp/mirror.list
fi

groupadd --gid 10001 orcastream
useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp --shell /usr/sbin/nologin orcastream
install --directory --owner=10001 --group=10001 /models
