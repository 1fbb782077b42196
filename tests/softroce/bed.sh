#!/usr/bin/env bash
# A real RDMA stack on a machine without one: Debian's own kernel with rdma_rxe (soft-RoCE), booted in
# QEMU under software emulation in about 7 s. Needs no KVM, and to run it no root.
#
#   bed.sh setup                     fetch and unpack the kernel, make the initial file system
#   bed.sh run [OPTIONS] COMMAND     one guest; the exit status is COMMAND's
#   bed.sh pair [OPTIONS] A B        two guests on one network, 10.77.0.1 runs A and 10.77.0.2 runs B
#   options: -m MEMORY_MB  -c CPUS  -t SECONDS  -n NICS (run only)
#
# Exit status 124: the time was up; 125: the guest died. On a busy machine one boot in a dozen stops
# in the kernel's first seconds; it is tried again, until COMMAND has begun. COMMAND is one string for bash; it runs as
# root, in this directory, with this environment, over this machine's files, read-only with a layer
# of memory on top: what it writes is gone afterwards, but for /mnt, a folder that is copied to $OUT.
#
# `run` gives rxe1..rxeN on n1..nN with 10.88.0.1..N, in one network: every nI is a veth whose other
# end pI is on a bridge, and rules by outgoing interface send even what is for this very host over
# the wire. So `tc netem` on nI (what leaves I) or on pI (what goes to I) and `ip link set pI nomaster`
# act on RDMA. `tc qdisc replace` keeps old options: delete, then add. `pair` gives rxe0 on eth0; a
# guest ends when its command does, and `echo b >/proc/sysrq-trigger` is a host's sudden death.
# Never `rdma link delete` a device that is in use: it blocks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=$PWD/.cache/softroce
cd "$OLDPWD"
PATH=$PATH:/usr/sbin:/sbin

memory_mb=512 cpus=2 seconds=300 nics=4
boot_seconds=90 boot_tries=3
mtu=4200 # of the networks: 4096 bytes of RDMA payload and its headers

fail() {
  printf 'bed.sh: %s\n' "$*" >&2
  exit 2
}

# ---- Set-up ------------------------------------------------------------------------------------------
setup() {
  local version package folder
  mkdir -p "$cache"
  exec 8>"$cache/lock"
  flock 8
  version=$(kernel_version)
  if [[ -n $version && -e $cache/initramfs ]]; then return; fi
  # Not the "cloud" kernel, which has neither rxe nor 9p.
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: //p' | head -n 1)
  [[ -n $package ]] || fail "apt knows no linux-image-amd64: run apt-get update; the bed needs Debian's kernel, on amd64"
  version=${package#linux-image-}
  folder=$cache/kernel
  rm -rf "$folder" "$cache"/*.deb
  mkdir "$folder"
  echo "fetching and unpacking $package (70 MB)"
  (cd "$cache" && apt-get download -q "$package")
  dpkg-deb -x "$cache/$package"_*.deb "$folder" # only unpacked: nothing of it is installed
  rm "$cache"/*.deb
  depmod -b "$folder" "$version"
  uncompress_kernel "$folder/boot/vmlinuz-$version" "$cache/vmlinux"
  make_initramfs "$folder" "$version"
  echo "$version" >"$cache/version"
}
kernel_version() { cat "$cache/version" 2>/dev/null || true; }

# As an uncompressed ELF file it boots 1.5 s sooner.
uncompress_kernel() {
  python3 - "$@" <<'END'
import lzma, sys
image = open(sys.argv[1], "rb").read()
start = image.find(b"\xfd7zXZ\0")
assert start > 0, "the kernel image is not compressed with xz"
open(sys.argv[2], "wb").write(lzma.LZMADecompressor().decompress(image[start:]))
END
}

# The modules without which this machine's files cannot be seen, and the script that mounts them.
make_initramfs() {
  local folder=$1 version=$2 root=$cache/initramfs.new module file
  local -A seen=()
  rm -rf "$root"
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,new}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for module in virtio_pci 9pnet_virtio 9p overlay; do
    while read -r _ file _; do
      [[ -z ${seen[$file]:-} ]] || continue
      seen[$file]=1
      case $file in
        *.xz) xz -dc "$file" >"$root/modules/$(basename "$file" .xz)" ;;
        *) cp "$file" "$root/modules/" ;;
      esac
      basename "$file" .xz >>"$root/order"
    done < <(modprobe -d "$folder" -S "$version" --show-depends "$module" | grep '^insmod')
  done
  cat >"$root/init" <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t devtmpfs dev /dev; $b mount -t sysfs sys /sys
while read module; do $b insmod /modules/$module || $b poweroff -f; done </order
nine=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o ro,$nine,cache=loose host /lower || $b poweroff -f
$b mount -t tmpfs -o size=90% upper /upper && $b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new || $b poweroff -f
$b umount /proc /sys /dev
$b mount -t 9p -o rw,$nine,cache=none share /new/mnt || $b poweroff -f
exec $b switch_root /new /bin/bash /mnt/start.sh
END
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$cache/initramfs"
  rm -r "$root"
}

# ---- Inside a guest ------------------------------------------------------------------------------------
# Run as process 1, after the settings that guest_ends writes.
guest_main() {
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  mount -t devtmpfs dev /dev
  mkdir -p /dev/pts /dev/shm /lib/modules
  mount -t devpts devpts /dev/pts
  mount -t tmpfs shm /dev/shm
  mount -t tmpfs run /run
  ln -sfn /proc/self/fd /dev/fd
  ln -sfn /proc/self/fd/0 /dev/stdin
  ln -sfn /proc/self/fd/1 /dev/stdout
  ln -sfn /proc/self/fd/2 /dev/stderr
  rm -rf "/lib/modules/$version"
  ln -s "$cache/kernel/lib/modules/$version" "/lib/modules/$version"
  hostname "$guest"
  ulimit -l unlimited
  ip link set lo up
  modprobe -a rdma_rxe ib_uverbs
  if [[ -n $address ]]; then guest_pair_network; else guest_mesh_network; fi
  cd "$directory"
  touch /mnt/started
  local code=0
  setsid bash /mnt/command.sh </dev/null || code=$?
  echo "$code" >/mnt/code
  busybox poweroff -f
}

guest_pair_network() {
  modprobe virtio_net
  local tries=0 nic=
  until nic=$(basename /sys/class/net/[!l]*) && [[ -e /sys/class/net/$nic ]]; do
    ((++tries < 100)) || return 1
    sleep 0.1
  done
  ip link set "$nic" name eth0
  ip link set eth0 mtu "$mtu"
  ip addr add "$address/24" dev eth0
  ip link set eth0 up
  rdma link add rxe0 type rxe netdev eth0
}

guest_mesh_network() {
  local i j
  ip link add br0 type bridge
  ip link set br0 mtu "$mtu" up
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for ((i = 1; i <= nics; ++i)); do
    ip link add "n$i" type veth peer name "p$i"
    ip link set "n$i" addrgenmode none mtu "$mtu"
    ip link set "p$i" mtu "$mtu" master br0 up
    echo 1 >"/proc/sys/net/ipv4/conf/n$i/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/n$i/rp_filter"
    ip addr add "10.88.0.$i/24" dev "n$i"
    ip link set "n$i" up
  done
  for ((i = 1; i <= nics; ++i)); do
    for ((j = 1; j <= nics; ++j)); do
      ((i != j)) || continue
      ip neigh replace "10.88.0.$j" lladdr "$(<"/sys/class/net/n$j/address")" dev "n$i" nud permanent
      ip route add "10.88.0.$j" dev "n$i" src "10.88.0.$i" table $((100 + i))
    done
    ip rule add pref $((10 + i)) oif "n$i" lookup $((100 + i))
  done
  # Last: the table by which what is for this host never leaves it.
  ip rule add pref 999 lookup local
  ip rule del pref 0
  for ((i = 1; i <= nics; ++i)); do rdma link add "rxe$i" type rxe netdev "n$i"; done
}

# ---- Guests, from outside --------------------------------------------------------------------------------
# The guests of one command each have a folder in $scratch, made before any is started.
all_started() {
  local share
  for share in "$scratch"/*/; do [[ -e $share/started ]] || return 1; done
}

# guest_ends NAME ADDRESS COMMAND QEMU_OPTIONS...: starts a guest, and returns when it has ended. It
# does not outlive a guest beside it that does not start.
guest_ends() {
  local guest=$1 address=$2 directory=$PWD version qemu nine=security_model=none,multidevs=remap
  local share=$scratch/$guest boot_limit=$((SECONDS + boot_seconds))
  printf '%s\n' "$3" >"$share/command.sh"
  shift 3
  version=$(kernel_version)
  [[ -n $version ]] || fail "run bed.sh setup first"
  {
    export -p # this environment, for COMMAND
    # shellcheck disable=SC2016 # The guest's PATH.
    echo 'export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin HOME=/root; unset TMPDIR'
    echo 'set -euo pipefail'
    declare -p guest address directory version cache mtu nics | sed 's/^declare -[-a-z]* //'
    declare -f guest_main guest_pair_network guest_mesh_network
    echo 'guest_main || busybox poweroff -f'
  } >"$share/start.sh"
  timeout -k 5 $((deadline > SECONDS ? deadline - SECONDS : 1)) qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max \
    -smp "$cpus" -m "$memory_mb" -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$cache/vmlinux" -initrd "$cache/initramfs" \
    -append "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off nokaslr tsc=reliable no_timer_check rcupdate.rcu_expedited=1" \
    -fsdev local,id=host,path=/,readonly=on,$nine -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev local,id=share,path="$share",$nine -device virtio-9p-pci,fsdev=share,mount_tag=share \
    "$@" </dev/null &
  qemu=$!
  until all_started || ! kill -0 "$qemu" 2>/dev/null || ((SECONDS > boot_limit)); do sleep 0.2; done
  all_started || kill "$qemu" 2>/dev/null || true
  wait "$qemu"
}

# exit_code NAME QEMU_CODE: the command's, or what became of the guest.
exit_code() {
  if [[ $2 == 124 ]]; then
    echo 124
  else
    cat "$scratch/$1/code" 2>/dev/null || echo 125
  fi
}

run() {
  local code=0
  mkdir "$scratch/guest"
  guest_ends guest "" "$1" -nic none || code=$?
  [[ -z ${OUT:-} ]] || cp -r "$scratch/guest/." "$OUT/"
  return "$(exit_code guest "$code")"
}

pair() {
  local wire="$scratch/wire" code_a=0 code_b=0 tries=0 first
  local nic=virtio-net-pci,netdev=net0,host_mtu=$mtu,mac=52:54:00:77:00
  mkdir "$scratch/a" "$scratch/b"
  guest_ends a 10.77.0.1 "$1" -device $nic:01 \
    -netdev stream,id=net0,server=on,addr.type=unix,addr.path="$wire" >"$scratch/a.log" 2>&1 &
  first=$!
  until [[ -S $wire ]]; do
    ((++tries < 100)) || fail "the first guest's QEMU did not start: $(cat "$scratch/a.log")"
    sleep 0.1
  done
  guest_ends b 10.77.0.2 "$2" -device $nic:02 \
    -netdev stream,id=net0,server=off,addr.type=unix,addr.path="$wire" >"$scratch/b.log" 2>&1 || code_b=$?
  wait "$first" || code_a=$?
  code_a=$(exit_code a "$code_a")
  code_b=$(exit_code b "$code_b")
  echo "--- guest a" && cat "$scratch/a.log"
  echo "--- guest b" && cat "$scratch/b.log"
  printf -- '--- guests ended with %s %s\n' "$code_a" "$code_b"
  [[ $code_a == 0 && $code_b == 0 ]]
}

command=${1:-}
(($# == 0)) || shift
while [[ ${1:-} == -? ]]; do
  case $1 in
    -m) memory_mb=$2 ;;
    -c) cpus=$2 ;;
    -t) seconds=$2 ;;
    -n) nics=$2 ;;
    *) fail "there is no option $1" ;;
  esac
  shift 2
done
case $command/$# in
  setup/0) setup ;;
  run/1 | pair/2)
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/run.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    deadline=$((SECONDS + seconds))
    for ((try = 1; try <= boot_tries && SECONDS < deadline; ++try)); do
      rm -rf "${scratch:?}"/*
      code=0
      "$command" "$@" || code=$?
      ! all_started || break
      echo "bed.sh: a guest did not boot" >&2
    done
    exit "$code"
    ;;
  *)
    sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
