#!/bin/sh
# Becomes systemd on the prepared machine. Usage: boot.sh FOLDER PURPOSE
set -eu
folder=$1 purpose=$2
root=$folder/memory/root

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for name in run tmp dev; do mount -t tmpfs -o mode=755 "$name" "$root/$name"; done
chmod 1777 "$root/tmp"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/run/lock"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
while read -r name minor; do mknod -m 666 "$root/dev/$name" c 1 "$minor"; done <<END
null 3
zero 5
full 7
random 8
urandom 9
nvidia0 3
nvidiactl 3
END

# What this machine mounts and starts of its own is none of the check's business.
: >"$root/etc/fstab"
rm -rf "$root/etc/systemd/system"
# Images of containers forbid packages to start daemons.
rm -f "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/etc/systemd/system/gpushare-scheduler.service.d" "$root/srv/check"
mount --bind "$folder" "$root/srv/check"

if [ "$purpose" = probe ]; then
    script="exit 0"
else
    script="exec sh -eux /srv/check/machine.sh"
fi
cat >"$root/etc/systemd/system/check.service" <<END
[Service]
Type=oneshot
ExecStart=/bin/sh -c "$script"
StandardOutput=file:/srv/check/log
StandardError=file:/srv/check/log
ExecStopPost=/bin/sh -c "systemctl --force exit \$EXIT_STATUS"
END
printf '[Unit]\nWants=check.service\n' >"$root/etc/systemd/system/check.target"
cat >"$root/etc/systemd/system/gpushare-scheduler.service.d/check.conf" <<END
[Service]
Environment=LD_LIBRARY_PATH=/srv/check SIMGPU_SOCKET=/run/card.sock GPUSHARE_FREEZE_UNTRIED=1
WatchdogSec=10s
END
export container=gpushare
unset NOTIFY_SOCKET || true
cd "$root"
pivot_root . mnt
umount --lazy mnt
exec chroot . /lib/systemd/systemd --system --unit=check.target --show-status=no --log-target=journal
