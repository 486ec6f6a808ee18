#!/bin/sh
# Installs, uses, stops and removes gpushare on a machine with systemd, by the commands of docs/install.md.
set -eux

export LD_LIBRARY_PATH=/srv/check SIMGPU_SOCKET=/run/card.sock HOME=/root DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
chmod 755 "$work"
cd "$work"
ln -s /srv/check/*.deb /srv/check/*.tar.gz /srv/check/train.py .

# As on a machine where sudo may do everything.
sudo() { "$@"; }
# Follows a block of the page.
# shellcheck disable=SC1090 # the block is not there yet
follow() { . "/srv/check/$1.sh"; }
property() { systemctl show --property "$1" --value gpushare-scheduler.service; }
# systemd has nothing to say about these units.
accepts() { [ -z "$(systemd-analyze verify --man=no "$@" 2>&1)" ]; }
# Waits for a fact; the machine's own limit ends a wait in vain.
wait_for() { until "$@"; do sleep 0.1; done >/dev/null 2>&1; }
knows_held() { gpushare-ctl status | grep held; }
is_replaced() { [ "$(property MainPID)" != "$hung" ]; }
is_logged() { journalctl --unit gpushare-scheduler | grep "$1"; }
files() { find /etc /usr/local /usr/bin /usr/lib/systemd /usr/lib/gpushare /usr/share/man ! -type d 2>/dev/null | sort; }

/srv/check/simgpu-card --socket /run/card.sock --memory 256MiB >/run/card.out &
wait_for grep . /run/card.out
chmod 666 /run/card.sock
files >/tmp/before

# The daemon runs with its rights taken away, and serves.
uses_it() {
    systemctl is-active gpushare-scheduler.service gpushare-scheduler.socket gpushare-scheduler-admin.socket
    systemctl is-enabled gpushare-scheduler.service gpushare-scheduler.socket gpushare-scheduler-admin.socket
    follow "sessions-with-the-system's-daemon" </dev/null
    # Another user's program: the daemon looks at processes that are not its own.
    setpriv --reuid=65534 --regid=65534 --clear-groups gpushare-ctl run --name once -- python3 train.py </dev/null |
        grep -qx '16777216 bytes hold 0xabcd1234'
    gpushare-ctl usage | grep -q once
    pid=$(property MainPID)
    [ "$(readlink "/proc/$pid/exe")" = "$1/bin/gpushare-scheduler" ]
    test -c "/proc/$pid/root/dev/nvidia0"
    test -c "/proc/$pid/root/dev/nvidiactl"
    grep -q '^NoNewPrivs:.1$' "/proc/$pid/status"
    grep -q '^Seccomp:.2$' "/proc/$pid/status"
    if nsenter --mount --target "$pid" touch /usr/touched; then exit 1; fi
}

# What is left of its rights suffices to freeze another user's program.
freezes_it() {
    mkfifo frozen-input
    setpriv --reuid=65534 --regid=65534 --clear-groups gpushare-ctl run --name cold --memory 32MiB -- \
        python3 train.py <frozen-input >frozen-output &
    program=$!
    exec 9>frozen-input
    wait_for grep 'hold 0xabcd1234' frozen-output
    gpushare-ctl session freeze cold
    # Its last call thaws it.
    exec 9>&-
    wait $program
    rm frozen-input frozen-output
}

# install.sh
follow archive-with-installsh
cd "$work"
uses_it /usr/local
freezes_it
[ "$(property WatchdogUSec)" = 10s ]
accepts /usr/local/lib/systemd/system/gpushare-scheduler*
systemd-analyze security --threshold=40 --no-pager gpushare-scheduler.service >rating
tail -n 1 rating

# A daemon that hangs is replaced, and a program that runs meanwhile goes on.
mkfifo input
gpushare run --name held -- python3 train.py <input >output &
program=$!
exec 9>input
wait_for grep 'hold 0xabcd1234' output
hung=$(property MainPID)
kill -STOP "$hung"
wait_for is_replaced
wait_for knows_held
[ "$(property NRestarts)" -ge 1 ]
wait_for is_logged "Watchdog timeout"

# A restart and an upgrade under it change nothing for it either.
systemctl reload gpushare-scheduler
sh -e ./gpushare-*-linux/install.sh >/dev/null
wait_for knows_held
exec 9>&-
wait $program

gpushare-ctl session create lasting --memory 32MiB
follow archive-with-installsh-2
grep -q self_service /etc/gpushare/config.toml
rm /etc/gpushare/config.toml
test -s /var/lib/gpushare/registry.redb
if systemctl is-active gpushare-scheduler.socket; then exit 1; fi
files >/tmp/after
diff /tmp/before /tmp/after

# The Debian package finds the state that the archive has left.
follow debian-package
uses_it /usr
gpushare-ctl session list | grep -q lasting
[ "$(dpkg-query --show --showformat '${db:Status-Status}' gpushare)" = installed ]
accepts /usr/lib/systemd/system/gpushare-scheduler*
if command -v man; then man gpushare-ctl-run | grep -q 'Run a program that shares its GPUs'; fi
echo '# changed' >>/etc/gpushare/config.toml
follow debian-package-2
test -s /var/lib/gpushare/registry.redb
grep -q '# changed' /etc/gpushare/config.toml
if systemctl is-active gpushare-scheduler.socket; then exit 1; fi
follow debian-package-3
test ! -e /var/lib/gpushare
test ! -e /etc/gpushare
if dpkg-query --show gpushare; then exit 1; fi
files >/tmp/after
diff /tmp/before /tmp/after
echo "all is well"
