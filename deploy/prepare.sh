#!/bin/sh
# What an image needs in addition to Python: an init, its own user, and a directory for models.
set -eu

# tini forwards signals even while Python is starting, when a process 1 without handlers would ignore them.
command -v tini > /dev/null || sh /opt/apt.sh tini

groupadd --gid 10001 orcastream
useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp --shell /usr/sbin/nologin orcastream
install --directory --owner=10001 --group=10001 /models
