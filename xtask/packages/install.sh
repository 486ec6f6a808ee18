#!/bin/sh
# Installs gpushare @VERSION@ for @ARCHITECTURE@ from the folder of this script, or removes it again.
#
# It tells every step before the first one. PREFIX/share/gpushare/manifest lists what it installed, and --uninstall
# removes that and nothing else.
set -eu
umask 022

usage() {
    cat <<'END'
Usage: ./install.sh [--prefix DIR] [--destdir DIR] [--no-systemd] [--enable] [--dry-run]
       PREFIX/share/gpushare/install.sh --uninstall [--purge] [--dry-run]

  --prefix DIR    where bin, lib and share are [default: /usr/local]
  --destdir DIR   root of another system, like a container image; also the variable DESTDIR
  --no-systemd    only programs, library, manual pages and completions; default for users without root
  --enable        also start the daemon, now and at each boot; needs a running systemd
  --uninstall     remove what was installed; sessions, usage and a changed configuration stay
  --purge         with --uninstall: remove these too
  --dry-run       only tell what would be done
END
}

fail() {
    printf 'install.sh: %s\n' "$1" >&2
    exit 1
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
prefix=/usr/local
root=${DESTDIR-}
systemd=default enable=no dry_run=no uninstall=no purge=no
installed=no
if [ -f "$here/manifest" ]; then
    # This is the installed copy, which knows where it is.
    installed=yes
    prefix=$(sed -n 's/^prefix //p' "$here/manifest")
    root=${here%"$prefix/share/gpushare"}
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
*[[:space:]:\$]*)
    fail "\`$prefix$root\` has a space, a colon or a \$, and no library can be preloaded from there; choose another folder"
    ;;
esac
[ "$purge" = no ] || [ "$uninstall" = yes ] || fail "--purge goes with --uninstall; see --help"
[ "$enable" = no ] || [ -z "$root" ] || fail "--enable starts the daemon of this machine, and --destdir is another one; leave one of them out"

if [ "$systemd" = default ]; then
    systemd=no
    if [ "$(id -u)" = 0 ] || [ -n "$root" ]; then systemd=yes; fi
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
config=/etc/gpushare/config.toml
manifest=$prefix/share/gpushare/manifest
services="gpushare-scheduler.service gpushare-scheduler.socket gpushare-scheduler-admin.socket"

has_systemd() {
    [ -z "$root" ] && [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]
}

# Whether the user may write where `$1` is or will be.
check_writable() {
    place=$1
    while [ ! -e "$place" ] && [ -n "$place" ]; do place=${place%/*}; done
    [ -w "${place:-/}" ] || fail "cannot write to ${place:-/}; run this as root, or choose a folder of yours with --prefix"
}

# Removes `$1` if it is an empty folder. Those of others stay.
remove_folder() {
    [ ! -d "$root$1" ] || rmdir "$root$1" 2>/dev/null || true
}

checksum() {
    sha256sum "$1" | cut -d ' ' -f 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/gpushare-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT PIPE TERM

begin() {
    if [ "$dry_run" = yes ]; then
        echo "Nothing was changed, because of --dry-run."
        exit 0
    fi
}

uninstall() {
    [ -f "$root$manifest" ] || fail "there is no $root$manifest, so nothing is installed at this prefix; name another with --prefix"
    check_writable "$root$manifest"
    sed -n 's/^file //p' "$root$manifest" >"$work/files"
    sed -n 's/^folder //p' "$root$manifest" | sort -r >"$work/folders"
    read -r sum path <<END || true
$(sed -n 's/^config //p' "$root$manifest")
END
    has_units=no
    if grep -q "^$units/" "$work/files"; then has_units=yes; fi

    echo "Removing gpushare from $root$prefix:"
    if [ $has_units = yes ] && has_systemd; then echo "  stop      $services"; fi
    sed "s|^|  remove    $root|" "$work/files"
    remove_config=no
    if [ -n "${path-}" ] && [ -e "$root$path" ]; then
        if [ "$purge" = yes ] || [ "$(checksum "$root$path")" = "$sum" ]; then
            remove_config=yes
            echo "  remove    $root$path"
        else
            echo "  keep      $root$path, which was changed"
        fi
    fi
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
    while read -r file; do rm -f "$root$file"; done <"$work/files"
    if [ $remove_config = yes ]; then rm -f "$root$path"; fi
    if [ $has_units = yes ] && [ "$purge" = yes ]; then rm -rf "$root/var/lib/gpushare" "$root/run/gpushare"; fi
    rm -f "$root$manifest"
    while read -r folder; do remove_folder "$folder"; done <"$work/folders"
    if [ $has_units = yes ] && has_systemd; then systemctl daemon-reload; fi
    echo "Done."
}

# Prints where a file of the archive goes; nothing for one that stays in the archive.
destination() {
    case $1 in
    lib/systemd/system/*) if [ "$systemd" = yes ]; then echo "$units/${1##*/}"; fi ;;
    lib/tmpfiles.d/*) if [ "$systemd" = yes ]; then echo "$tmpfiles/${1##*/}"; fi ;;
    bin/* | lib/* | share/doc/* | share/man/* | share/*completion*/* | share/zsh/*) echo "$prefix/$1" ;;
    install.sh) echo "$prefix/share/gpushare/install.sh" ;;
    esac
}

# Puts a file in place in one step: programs may run from the old one, and have the library mapped.
place() {
    source=$here/$1 to=$root$2
    mkdir -p "${to%/*}"
    case $1 in
    lib/systemd/system/*.service) sed "s|/usr/bin/gpushare|$prefix/bin/gpushare|" "$source" >"$to.new" ;;
    *) cp "$source" "$to.new" ;;
    esac
    case $1 in bin/* | install.sh | *.so) chmod 755 "$to.new" ;; *) chmod 644 "$to.new" ;; esac
    mv -f "$to.new" "$to"
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
    check_writable "$root$prefix/bin"
    if [ "$systemd" = yes ]; then check_writable "$root$units"; fi
    if [ "$enable" = yes ]; then has_systemd || fail "--enable needs a running systemd, and this machine has none; leave it out"; fi

    : >"$work/old" && : >"$work/folders"
    if [ -f "$root$manifest" ]; then
        sed -n 's/^file //p' "$root$manifest" >"$work/old"
        sed -n 's/^folder //p' "$root$manifest" >"$work/folders"
    fi
    {
        sed 's/^[^ ]*  //' "$here/SHA256SUMS"
        echo bin/gpushare
    } | while read -r file; do
        to=$(destination "$file")
        if [ -n "$to" ]; then echo "$file $to"; fi
    done >"$work/plan"

    echo "Installing gpushare @VERSION@ into $root$prefix:"
    while read -r file to; do
        if ! [ -e "$root$to" ] && ! [ -L "$root$to" ]; then
            echo "  install   $root$to"
        elif grep -qxF "$to" "$work/old"; then
            echo "  replace   $root$to"
        else
            fail "$root$to is there and was not installed by this script; remove it first, or choose another --prefix"
        fi
        note_folders "$to"
        echo "$to" >>"$work/new"
    done <"$work/plan"
    note_folders "$manifest"
    grep -vxF -f "$work/new" "$work/old" >"$work/obsolete" || true
    sed "s|^|  remove    $root|" "$work/obsolete"
    config_line=$(sed -n '/^config /p' "$root$manifest" 2>/dev/null || true)
    add_config=no
    if [ "$systemd" = yes ]; then
        if [ -e "$root$config" ]; then
            echo "  keep      $root$config"
        else
            echo "  install   $root$config"
            add_config=yes
            note_folders "$config"
            config_line="config $(checksum "$here/share/gpushare/config.toml") $config"
        fi
        if has_systemd; then echo "  run       systemctl daemon-reload, systemd-tmpfiles --create"; fi
        if [ "$enable" = yes ]; then echo "  start     $services"; fi
    fi
    begin

    # First the list of all that will be there, so that an interrupted installation can be removed too.
    mkdir -p "$root$prefix/share/gpushare"
    write_manifest "$work/old" "$work/new"
    while read -r file to; do
        case $file in
        bin/gpushare)
            ln -sf gpushare-ctl "$root$to"
            ;;
        *) place "$file" "$to" ;;
        esac
    done <"$work/plan"
    if [ $add_config = yes ]; then place share/gpushare/config.toml "$config"; fi
    while read -r file; do rm -f "$root$file"; done <"$work/obsolete"
    write_manifest "$work/new"

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
    {
        echo "prefix $prefix"
        cat "$@" | sort -u | sed 's/^/file /'
        sort -u "$work/folders" | sed 's/^/folder /'
        if [ -n "$config_line" ]; then echo "$config_line"; fi
    } >"$root$manifest.new"
    mv -f "$root$manifest.new" "$root$manifest"
}

if [ "$uninstall" = yes ]; then uninstall; else install; fi
