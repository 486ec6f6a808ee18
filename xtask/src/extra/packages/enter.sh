#!/bin/sh
# Prepares a machine in the mount namespace of this shell, starts it, and tidies up its control groups.
# Usage: enter.sh FOLDER PURPOSE
set -eu
folder=$1 purpose=$2

[ -x /usr/lib/systemd/systemd ] || [ -x /lib/systemd/systemd ] || {
    echo "there is no systemd" >&2
    exit 1
}
mkdir -p "$folder/memory"
mount -t tmpfs -o mode=755 gpushare "$folder/memory"
cd "$folder/memory"
mkdir changes work root groups
mount -t overlay -o lowerdir=/,upperdir=changes,workdir=work gpushare root
mount -t cgroup2 gpushare groups
group=groups/gpushare-$$
mkdir "$group"
echo $$ >"$group/cgroup.procs"

code=0
unshare --mount --cgroup --pid --fork --kill-child --ipc --uts --net sh "$folder/boot.sh" "$folder" "$purpose" || code=$?

echo $$ >groups/cgroup.procs
find "$group" -depth -type d -exec rmdir {} +
exit $code
