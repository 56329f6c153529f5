#!/bin/sh
# Install Debian packages, from APT_MIRROR if it names a mirror, and leave no other files: `apt.sh tini`.
set -eu

options=""
if [ -n "${APT_MIRROR:-}" ]; then
    . /etc/os-release
    echo "deb $APT_MIRROR $VERSION_CODENAME main" > /tmp/mirror.list
    options="-o Dir::Etc::SourceList=/tmp/mirror.list -o Dir::Etc::SourceParts=-"
fi
apt-get $options update
apt-get $options install --yes --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /tmp/mirror.list
