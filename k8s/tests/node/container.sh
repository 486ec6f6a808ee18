#!/bin/sh
# Becomes a program in a container, in the namespaces that it was started in. The image is this machine's system.
# Usage: container.sh FOLDER [--mount FROM TO OPTIONS]... -- PROGRAM...
# All containers may use the same FOLDER, since each one has a mount namespace.
set -eu
folder=$1
shift
mount -t tmpfs -o mode=755 container "$folder"
root=$folder/root
mkdir "$root" "$folder/layers"
mount --bind "$root" "$root"
for name in bin etc lib lib32 lib64 sbin usr; do
    if [ -L "/$name" ]; then
        cp -P "/$name" "$root/$name"
    elif [ -d "/$name" ]; then
        layer=$folder/layers/$name
        mkdir "$root/$name" "$layer" "$layer/changes" "$layer/work"
        mount -t overlay -o "lowerdir=/$name,upperdir=$layer/changes,workdir=$layer/work" image "$root/$name"
    fi
done
mkdir "$root/dev" "$root/mnt" "$root/proc" "$root/tmp"
mount -t proc proc "$root/proc"
for name in null zero random urandom; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
while [ "$1" = --mount ]; do
    mkdir -p "$root${3%/*}"
    if [ -d "$2" ]; then mkdir -p "$root$3"; else : >>"$root$3"; fi
    mount --bind "$2" "$root$3"
    mount -o "remount,bind,$4" "$root$3"
    shift 4
done
shift
cd "$root"
pivot_root . mnt
umount --lazy mnt
exec chroot . "$@"
