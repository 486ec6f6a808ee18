#!/bin/sh
# Installs gpushare @VERSION@ for @ARCHITECTURE@ from the folder of this script, or removes it again.
#
# It tells every step before the first one. PREFIX/share/gpushare/manifest lists what it installed with checksums, and
# --uninstall removes that and nothing else:
#
#   prefix /usr/local
#   file SHA256 bin/gpushare-ctl          a file of the archive; destination() says where it is
#   file link:gpushare-ctl bin/gpushare   a symbolic link
#   folder /usr/local/share/gpushare      a folder that was made for the files
#
# As root it writes and removes only where no other user can make names.
set -eu
umask 022

usage() {
    cat <<'END'
Usage: ./install.sh [--prefix DIR] [--destdir DIR] [--no-systemd] [--enable] [--force] [--dry-run]
       PREFIX/share/gpushare/install.sh --uninstall [--purge] [--force] [--dry-run]

  --prefix DIR    where bin, lib and share are [default: /usr/local]
  --destdir DIR   root of another system, like a container image; also the variable DESTDIR
  --no-systemd    no units and no configuration; default for users without root
  --enable        also start the daemon, now and at each boot; needs a running systemd
  --uninstall     remove what was installed; sessions, usage and files that were changed stay
  --purge         with --uninstall: remove sessions, usage and the configuration too
  --force         replace or remove files although they were changed
  --dry-run       only tell what would be done
END
}

fail() {
    printf 'install.sh: %s\n' "$1" >&2
    exit 1
}

user=$(id -u)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
prefix=/usr/local
root=${DESTDIR-}
systemd=default enable=no dry_run=no uninstall=no purge=no force=no
installed=no
if [ -f "$here/manifest" ]; then
    # This is the installed copy, which knows where it is.
    installed=yes
    prefix=$(sed -n 's/^prefix //p' "$here/manifest")
    root=${here%"$prefix/share/gpushare"}
    if [ "$root" = "$here" ]; then
        # The prefix leads here by a symbolic link, or this is a copy.
        root=
        [ "$(CDPATH='' cd -- "$prefix/share/gpushare" 2>/dev/null && pwd -P)" = "$here" ] ||
            fail "$here is a copy of what is installed at the prefix \`$prefix\`; run the script there"
    fi
fi

while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --destdir)
        [ $# -ge 2 ] || fail "$1 needs a folder after it; see --help"
        case $1 in --prefix) prefix=$2 ;; *) root=$2 ;; esac
        shift
        ;;
    --prefix=*) prefix=${1#*=} ;;
    --destdir=*) root=${1#*=} ;;
    --no-systemd) systemd=no ;;
    --enable) enable=yes ;;
    --dry-run) dry_run=yes ;;
    --uninstall) uninstall=yes ;;
    --purge) purge=yes ;;
    --force) force=yes ;;
    --help | -h)
        usage
        exit 0
        ;;
    *) fail "there is no option $1; see --help" ;;
    esac
    shift
done

prefix=${prefix%/}
root=${root%/}
case $prefix in
/*) ;;
*) fail "the prefix \`$prefix\` is no absolute path; write it like /usr/local" ;;
esac
case $root in
'' | /*) ;;
*) fail "the destdir \`$root\` is no absolute path; write it like /srv/image" ;;
esac
case $prefix$root in
*[[:space:]:\$%\&\|\\\"\']*)
    fail "\`$prefix$root\` has a space, a quote or one of : \$ % & | \\, which the loader or systemd cannot take; choose another folder"
    ;;
esac
case $root$prefix/ in
*//* | */./* | */../*) fail "\`$root$prefix\` has //, /./ or /../ in it; write it without" ;;
esac
[ "$purge" = no ] || [ "$uninstall" = yes ] || fail "--purge goes with --uninstall; see --help"
[ "$enable" = no ] || [ -z "$root" ] || fail "--enable starts the daemon of this machine, and --destdir is another one; leave one of them out"

if [ "$systemd" = default ]; then
    systemd=no
    if [ "$user" = 0 ] || [ -n "$root" ]; then systemd=yes; fi
fi
[ "$enable" = no ] || [ "$systemd" = yes ] || fail "--enable needs root and the systemd units; leave it out, or run this as root"

case $prefix in
/usr | /usr/local)
    units=$prefix/lib/systemd/system
    tmpfiles=$prefix/lib/tmpfiles.d
    ;;
*)
    # systemd looks for units at few places.
    units=/etc/systemd/system
    tmpfiles=/etc/tmpfiles.d
    ;;
esac
config=share/gpushare/config.toml
manifest=$prefix/share/gpushare/manifest
services="gpushare-scheduler.service gpushare-scheduler.socket gpushare-scheduler-admin.socket"

has_systemd() {
    [ -z "$root" ] && [ "$user" = 0 ] && [ -d /run/systemd/system ]
}

# Prints where a file of the archive goes. Prints nothing for one that stays there, or for a name that none has.
destination() {
    case /$1/ in *[!A-Za-z0-9._/-]* | *//* | */./* | */../*) return 0 ;; esac
    case $1 in
    lib/systemd/system/gpushare*) echo "$units/${1##*/}" ;;
    lib/tmpfiles.d/gpushare*) echo "$tmpfiles/${1##*/}" ;;
    "$config") echo /etc/gpushare/config.toml ;;
    install.sh) echo "$prefix/share/gpushare/install.sh" ;;
    share/gpushare/gpushare_jupyter-*) echo "$prefix/$1" ;;
    bin/gpushare* | lib/gpushare/* | share/doc/gpushare/* | share/man/man?/gpushare*) echo "$prefix/$1" ;;
    share/bash-completion/completions/gpushare* | share/zsh/site-functions/_gpushare*) echo "$prefix/$1" ;;
    share/fish/vendor_completions.d/gpushare*) echo "$prefix/$1" ;;
    esac
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

# Whether the user may write where `$1` is or will be.
check_writable() {
    place=$1
    while [ ! -e "$place" ] && [ -n "$place" ]; do place=${place%/*}; done
    [ -w "${place:-/}" ] || fail "cannot write to ${place:-/}; run this as root, or choose a folder of yours with --prefix"
}

# Checks that only root can put another file in the place of `$2` in the folder `$1`.
check_rights() {
    case $safe in *":$1:"*) return 0 ;; esac
    case $(stat -c '%u %A' -- "$1") in
    0\ d????-??-?)
        safe=$safe:$1:
        return 0
        ;;
    # With the sticky bit, a name belongs to the owner of its file.
    0\ d????????[tT])
        exists "$2" || fail "anybody can make $2 before root does; make that folder as root first, or choose another one"
        case $(stat -c %u -- "$2") in 0) return 0 ;; esac
        fail "$2 belongs to another user than root, who could replace what root installs there; choose another folder"
        ;;
    esac
    fail "another user than root can write to $1 and replace what root installs there; choose another folder, or make it root's alone with chown and chmod go-w"
}

# Folders to which only root can write, as far as they were looked at.
safe=

# Follows a path from the folder `$at` on, as the kernel does, to the folder `$at`. Symbolic links are followed if `$2`
# is yes. Stops at the first name that is not there.
walk() {
    rest=$1/ links=0
    while [ -n "$rest" ] && [ "$is_there" = yes ]; do
        name=${rest%%/*} rest=${rest#*/}
        case $name in
        '' | .) continue ;;
        ..)
            at=${at%/*}
            continue
            ;;
        esac
        if [ "$user" = 0 ]; then check_rights "${at:-/}" "$at/$name"; fi
        if [ -L "$at/$name" ]; then
            [ "$2" = yes ] || fail "$at/$name is a symbolic link and leads out of $root; put a folder in its place"
            links=$((links + 1))
            [ $links -le 40 ] || fail "$at/$name is a symbolic link to itself; remove it"
            target=$(readlink -- "$at/$name")
            case $target in /*) at='' ;; esac
            rest=$target/$rest
        else
            at=$at/$name
            [ -d "$at" ] || is_there=no
            [ "$is_there" = yes ] || ! [ -e "$at" ] || fail "$at is no folder; remove it, or choose another --prefix"
        fi
    done
}

# Checks that the files of a folder below `$root` are those that its path says: with --destdir no symbolic link leads
# out of it, and for root no other user can make one.
check_folder() {
    [ "$user" = 0 ] || [ -n "$root" ] || return 0
    at='' is_there=yes
    if [ -n "$root" ]; then
        walk "$root" yes
        walk "$1" no
    else
        walk "$1" yes
    fi
    [ "$user" != 0 ] || [ $is_there = no ] || check_rights "${at:-/}" "$at/gpushare"
}

# Checks the folders of the files that are listed in `$1` by their names in the archive.
check_folders() {
    cut -d ' ' -f 3 "$1" | while read -r name; do
        to=$(destination "$name")
        echo "${to%/*}"
    done | sort -u >"$work/checked"
    while read -r checked; do check_folder "$checked"; done <"$work/checked"
}

# Prints what a file is: its checksum, or where a symbolic link points to.
state() {
    if [ -L "$1" ]; then
        echo "link:$(readlink -- "$1")"
    elif [ -f "$1" ]; then
        sum=$(sha256sum <"$1")
        echo "${sum%% *}"
    fi
}

# Prints the lines of the last list for the file `$1` of the archive.
lines_of() {
    while read -r kind sum name; do
        if [ "$name" = "$1" ]; then echo "$kind $sum $name"; fi
    done <"$work/old"
}

# Whether the file `$1` of the archive is what was installed. An interrupted upgrade leaves the old file or the new.
is_unchanged() {
    grep -qxF "file $(state "$root$(destination "$1")") $1" "$work/old"
}

# Reads the list of the installation into `$work/old` and `$work/old-folders`; both are empty if there is none.
read_manifest() {
    : >"$work/old" && : >"$work/old-folders"
    check_folder "${manifest%/*}"
    exists "$root$manifest" || return 0
    if [ -L "$root$manifest" ] || ! [ -f "$root$manifest" ]; then
        fail "$root$manifest is no plain file; remove it and what was installed by hand"
    fi
    if [ "$user" = 0 ]; then
        case $(stat -c '%u %A' -- "$root$manifest") in
        0\ -????-??-?) ;;
        *) fail "another user than root can write to $root$manifest; check each line of it, then make it root's alone with chown and chmod go-w" ;;
        esac
    fi
    cp "$root$manifest" "$work/manifest"
    while read -r kind value name more; do
        case $kind in
        prefix) [ "$value" = "$prefix" ] || fail "$root$manifest is for the prefix $value; name that with --prefix" ;;
        folder) echo "$value" >>"$work/old-folders" ;;
        *)
            to=$(destination "$name")
            if [ "$kind" != file ] || [ -z "$to" ] || [ -n "$more" ]; then
                fail "$root$manifest has the line \`$kind $value $name\`, which this script does not write; remove the line"
            fi
            echo "file $value $name" >>"$work/old"
            ;;
        esac
    done <"$work/manifest"
    check_folders "$work/old"
}

# Prints the names of the files in lists of them.
names() {
    cut -d ' ' -f 3 "$@" | sort -u
}

new=
# Root's list of what to remove is in no folder of another user.
if [ "$user" = 0 ]; then TMPDIR=/tmp; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/gpushare-install.XXXXXX")
trap 'rm -rf "$work" ${new:+"$new"}' EXIT
trap 'exit 1' HUP INT PIPE TERM

begin() {
    if [ "$dry_run" = yes ]; then
        echo "Nothing was changed, because of --dry-run."
        exit 0
    fi
}

# Tells whether a file of the archive is removed, and lists it in `$work/remove` or in `$work/kept`.
plan_removal() {
    path=$root$(destination "$1")
    exists "$path" || return 0
    may_remove=$force
    if is_unchanged "$1"; then may_remove=yes; fi
    if [ "$1" = "$config" ] && [ $purge = yes ]; then may_remove=yes; fi
    if [ -d "$path" ] && ! [ -L "$path" ]; then
        echo "  keep      $path, which is a folder now"
    elif [ $may_remove = yes ]; then
        echo "  remove    $path"
        echo "$path" >>"$work/remove"
    else
        echo "  keep      $path, which was changed; --force removes it"
        lines_of "$1" >>"$work/kept"
    fi
}

remove() {
    while read -r path; do rm -f -- "$path"; done <"$work/remove"
}

uninstall() {
    read_manifest
    [ -s "$work/old" ] || fail "there is no $root$manifest, so nothing is installed at this prefix; name another with --prefix"
    check_writable "$root$manifest"
    names "$work/old" >"$work/names"
    has_units=no
    if grep -q '^lib/systemd/' "$work/names"; then
        has_units=yes
        check_folder /var/lib
        check_folder /run
    fi

    echo "Removing gpushare from $root$prefix:"
    if [ $has_units = yes ] && has_systemd; then echo "  stop      $services"; fi
    : >"$work/remove"
    while read -r name; do plan_removal "$name"; done <"$work/names"
    if [ $has_units = yes ]; then
        for state in /var/lib/gpushare /run/gpushare; do
            [ -d "$root$state" ] || continue
            if [ "$purge" = yes ]; then echo "  remove    $root$state"; else echo "  keep      $root$state"; fi
        done
    fi
    begin

    if [ $has_units = yes ] && has_systemd; then
        # shellcheck disable=SC2086 # several units
        systemctl disable --quiet --now $services || fail "systemd cannot stop the daemon; see the lines above"
    fi
    remove
    if [ $has_units = yes ] && [ "$purge" = yes ]; then rm -rf "$root/var/lib/gpushare" "$root/run/gpushare"; fi
    rm -f "$root$manifest"
    # Of the folders in the list, those that are above a file of ours.
    while read -r name; do
        folder=$(destination "$name")
        while folder=${folder%/*} && [ -n "$folder" ]; do echo "$folder"; done
    done <"$work/names" >"$work/above"
    grep -xF -f "$work/above" "$work/old-folders" | sort -ru | while read -r folder; do
        # A folder with files of others stays.
        [ ! -d "$root$folder" ] || rmdir "$root$folder" 2>/dev/null || true
    done
    if [ $has_units = yes ] && has_systemd; then systemctl daemon-reload; fi
    echo "Done."
}

# Prints a file of the archive as it is installed.
contents() {
    case $1 in
    lib/systemd/system/*.service) sed "s|/usr/bin/gpushare|$prefix/bin/gpushare|" "$here/$1" ;;
    *) cat "$here/$1" ;;
    esac
}

# Puts a file in place in one step: programs may run from the old one, and have the library mapped.
place() {
    to=$root$(destination "$1")
    mkdir -p "${to%/*}"
    case $1 in
    bin/gpushare)
        new=$(mktemp -u "${to%/*}/.gpushare.XXXXXX")
        ln -s gpushare-ctl "$new"
        ;;
    *)
        new=$(mktemp "${to%/*}/.gpushare.XXXXXX")
        contents "$1" >"$new"
        case $1 in bin/* | install.sh | *.so) chmod 755 "$new" ;; *) chmod 644 "$new" ;; esac
        ;;
    esac
    mv -fT "$new" "$to"
    new=
}

# Lists in `$work/folders` the folders above `$1` that are not there yet.
note_folders() {
    folder=${1%/*}
    while [ -n "$folder" ] && [ ! -d "$root$folder" ]; do
        echo "$folder" >>"$work/folders"
        folder=${folder%/*}
    done
}

install() {
    [ $installed = no ] || fail "this is the installed copy, which can only --uninstall; to install, unpack an archive"
    [ -f "$here/SHA256SUMS" ] || fail "$here is not the unpacked archive; unpack it and run the script in it"
    (cd "$here" && sha256sum -c SHA256SUMS >/dev/null 2>&1) || fail "the files in $here are damaged; unpack the archive again"
    if [ -z "$root" ]; then
        [ "$(uname -m)" = "@ARCHITECTURE@" ] || fail "this archive is for @ARCHITECTURE@ and this machine is $(uname -m); take the archive for it"
        "$here/bin/gpushare-ctl" --version >/dev/null 2>&1 || fail "the programs do not run here; they need glibc 2.17 or newer (not musl) and libgcc_s.so.1"
    fi
    if [ "$enable" = yes ]; then has_systemd || fail "--enable needs a running systemd, and this machine has none; leave it out"; fi

    read_manifest
    cp "$work/old-folders" "$work/folders"
    : >"$work/new" && : >"$work/kept" && : >"$work/remove"
    {
        cat "$here/SHA256SUMS"
        echo link:gpushare-ctl bin/gpushare
    } | while read -r sum name; do
        [ -n "$(destination "$name")" ] || continue
        case $name in
        lib/systemd/* | lib/tmpfiles.d/* | "$config") [ "$systemd" = yes ] || continue ;;
        esac
        case $name in *.service) sum=$(contents "$name" | sha256sum) ;; esac
        echo "file ${sum%% *} $name"
    done >"$work/archive"
    check_folders "$work/archive"
    check_writable "$root$prefix/bin"
    if [ "$systemd" = yes ]; then check_writable "$root$units"; fi

    echo "Installing gpushare @VERSION@ into $root$prefix:"
    while read -r _ sum name; do
        to=$(destination "$name")
        if ! exists "$root$to"; then
            echo "  install   $root$to"
        elif [ "$name" = "$config" ]; then
            echo "  keep      $root$to"
            continue
        elif [ -d "$root$to" ] && ! [ -L "$root$to" ] || [ -z "$(lines_of "$name")" ]; then
            fail "$root$to is there and was not installed by this script; remove it first, or choose another --prefix"
        elif [ $force = no ] && ! is_unchanged "$name"; then
            fail "$root$to was changed since it was installed; save the change elsewhere, then replace the file with --force"
        else
            echo "  replace   $root$to"
        fi
        note_folders "$to"
        echo "file $sum $name" >>"$work/new"
    done <"$work/archive"
    note_folders "$manifest"
    names "$work/new" >"$work/names"
    # Files that this version has no more. The configuration stays, and so does its line.
    names "$work/old" | { grep -vxF -f "$work/names" || true; } >"$work/others"
    while read -r name; do
        if [ "$name" = "$config" ]; then
            lines_of "$name" >>"$work/kept"
        else
            plan_removal "$name"
        fi
    done <"$work/others"
    if [ "$systemd" = yes ]; then
        if has_systemd; then echo "  run       systemctl daemon-reload, systemd-tmpfiles --create"; fi
        if [ "$enable" = yes ]; then echo "  start     $services"; fi
    fi
    begin

    # First the list of all that will be there, so that an interrupted installation can be removed too.
    mkdir -p "$root$prefix/share/gpushare"
    write_manifest "$work/old" "$work/new"
    while read -r name; do place "$name"; done <"$work/names"
    remove
    write_manifest "$work/kept" "$work/new"

    if [ "$systemd" = yes ] && has_systemd; then
        systemctl daemon-reload
        systemd-tmpfiles --create "$tmpfiles/gpushare.conf"
        if [ "$enable" = yes ]; then
            # shellcheck disable=SC2086 # several units
            systemctl enable --quiet --now $services || fail "systemd cannot start the daemon; journalctl -u gpushare-scheduler says why"
        fi
        # A daemon of the last version goes on with the new one; its programs run on meanwhile.
        systemctl try-restart gpushare-scheduler.service
    fi
    echo "Done. To remove it: $prefix/share/gpushare/install.sh --uninstall"
    if [ "$systemd" = yes ] && [ "$enable" = no ] && [ -z "$root" ]; then
        echo "To start the daemon now and at each boot: systemctl enable --now $services"
    fi
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) if [ -z "$root" ]; then echo "$prefix/bin is not in your PATH."; fi ;;
    esac
}

write_manifest() {
    new=$(mktemp "$root${manifest%/*}/.gpushare.XXXXXX")
    {
        echo "prefix $prefix"
        sort -u "$@"
        sort -u "$work/folders" | sed 's/^/folder /'
    } >"$new"
    chmod 644 "$new"
    mv -fT "$new" "$root$manifest"
    new=
}

if [ "$uninstall" = yes ]; then uninstall; else install; fi
